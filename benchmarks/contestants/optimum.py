"""optimum-onnx: the same model, exported by Optimum and run by ONNX Runtime with Hugging Face's `generate`."""

import importlib.metadata
import tempfile
from pathlib import Path

import onnxruntime
from optimum.exporters.onnx import main_export
from optimum.onnxruntime import ORTModelForSeq2SeqLM
from txport.benchmarks.contestants.huggingface import Generator
from txport.benchmarks.contestants.huggingface_weights import hugging_face_model
from txport.models.checkpoint import load_checkpoint


class OptimumBackend(Generator):
    """The model of a checkpoint, which is exported at loading.

    Args:
        checkpoint: directory of the checkpoint.
        device: "cpu" or "cuda".
        threads: number of threads; 0 for ONNX Runtime's default.
    """

    def __init__(self, checkpoint: str, device: str, threads: int) -> None:
        model = load_checkpoint(Path(checkpoint)).model
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if device == "cuda":
            provider = "CUDAExecutionProvider"
        else:
            provider = "CPUExecutionProvider"
        self._scratch = tempfile.TemporaryDirectory(prefix="txport-optimum-")
        source, exported = (Path(self._scratch.name, name) for name in ("model", "onnx"))
        hugging_face_model(model).save_pretrained(source)
        task = "text2text-generation-with-past"
        main_export(str(source), str(exported), task=task, device=device, do_validation=False, no_post_process=False)
        session = ORTModelForSeq2SeqLM.from_pretrained(
            exported, provider=provider, session_options=options, use_io_binding=device == "cuda"
        )
        version = importlib.metadata.version("optimum-onnx")
        self.engine = f"optimum-onnx {version}, ONNX Runtime {onnxruntime.__version__} on {device}"
        super().__init__(session, model.config, device)

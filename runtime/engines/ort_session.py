"""Opens ONNX Runtime sessions: chooses the provider and the decoder step, and reduces errors to one sentence."""

import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from txport.runtime.bundle.archive import Archive, File, Files, files_of
from txport.runtime.bundle.graph_rules import checked_graph
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import Graph, Limits, Lowering
from txport.runtime.device.capture import WHOLE_DEVICE
from txport.runtime.engines.cuda_libraries import load_cuda_libraries, missing, no_cuda, why_no_cuda
from txport.runtime.engines.external_data import moved
from txport.runtime.errors import BundleError, MissingLibrary, ResourceError, TxportError, failure
from txport.runtime.system import limited

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
Provider = str | tuple[str, dict[str, str]]
# Full float32 products, since ids must be those of PyTorch: TF32, the default, keeps 10 bits of each factor. The arena
# grows by powers of two, its default, so that it settles. Attention by ONNX Runtime's own kernels (flash 1, memory
# efficient 2, plain 16; XQA is apart), never by cuDNN's, the default from Hopper on: ONNX Runtime keeps their code for
# the thread that first ran them, and unloads it when that thread ends. Captured steps then ran what lay there instead.
CUDA_OPTIONS = {"use_tf32": "0", "sdpa_kernel": "19"}
_TYPES = {"float32": "float", "float16": "float16", "int64": "int64", "int32": "int32", "bool": "bool"}
# Microseconds that threads wait actively for the next run or operator: longer than the host takes between steps.
SPIN_US = "500"
# The first version whose MultiHeadAttention reads a bias of one head, [batch, 1, 1, source], rightly in all rows.
READS_BIAS = (1, 21, 1)
_log = logging.getLogger(__name__)


class _GpuSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that is opened and closed while no stream of the device is captured."""

    _alone = WHOLE_DEVICE  # a global may be gone when the interpreter ends

    def __init__(self, *arguments: Any, **options: Any) -> None:
        # Self-attention over one token is four nodes of a CUDA graph by XQA, the default of newer versions, and one by
        # flash attention, which also writes the caches. ONNX Runtime has no other switch for it.
        os.environ.setdefault("ORT_ENABLE_XQA", "0")
        with self._alone:
            super().__init__(*arguments, **options)

    def __del__(self) -> None:
        with self._alone:
            self.__dict__.clear()


def run(session: Any, binding: Any, options: Any = None) -> None:
    """Run a session over what is bound.

    Raises:
        EngineError: ONNX Runtime failed.
        MissingLibrary: its CUDA provider, which loads cuDNN when it first needs it, does not find it.
        ResourceError: it could not allocate memory.
    """
    try:
        session.run_with_iobinding(binding, options)
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        if "cuDNN is unavailable" in str(error):
            raise no_cuda(missing("libcudnn.so.9")) from error
        raise failure(f"ONNX Runtime failed: {reason_of(error)}") from error


def providers_of(device: str, **cuda: str) -> list[Provider]:
    """Providers in ONNX Runtime's terms, the device's own first; its libraries are loaded.

    Args:
        device: "cpu" or "cuda".
        cuda: more options of the CUDA provider.

    Raises:
        MissingLibrary: ONNX Runtime has no CUDA provider, or the provider lacks a library.
    """
    if device == "cpu":
        return [CPU]
    if CUDA not in onnxruntime.get_available_providers():
        raise MissingLibrary(
            f"device {device} needs ONNX Runtime with its CUDA provider, which is not installed: "
            "pip install 'txport[ort-gpu]' instead of txport[ort], or use --device cpu"
        )
    load_cuda_libraries()
    return [(CUDA, {**CUDA_OPTIONS, **cuda}), CPU]


def open_step(
    manifest: Manifest, lowerings: Sequence[Lowering], open_session: Callable[[Graph], Any]
) -> tuple[Graph, Any]:
    """Return the first of these decoder steps that the installed version loads, and its session."""
    failures: list[BundleError] = []
    for name in lowerings:
        graph = manifest.step(name)
        try:
            return graph, open_session(graph)
        except BundleError as error:
            _log.info("lowering %s was passed over: %s", name, error)
            failures.append(error)
    raise failures[0]


def refuse_unaligned(graph: Graph, limits: Limits) -> None:
    """Refuse a step whose masks have rows that ONNX Runtime's CUDA attention reads beyond their alignment.

    It loads a mask eight values at a time, also where a row is not a multiple of eight, and a misaligned address ends
    the CUDA context (microsoft/onnxruntime#28366). Buffers have such rows only at the bundle's limits.

    Raises:
        BundleError: the step has the operator, and a limit is not a multiple of 8.
    """
    if graph.lowering == "tensorscatter" and (limits.source % 8 or limits.target % 8):
        raise BundleError(
            f"ONNX Runtime cannot run the lowering tensorscatter on a GPU for up to {limits.source} source and "
            f"{limits.target} target tokens: export the bundle again with --max-source and --max-target that are "
            "multiples of 8, or with the lowering ort or scatter"
        )


def open_beams(graph: Graph | None, open_session: Callable[[Graph], Any]) -> Any | None:
    """Return the session of the step of beam search, `decoder_beams`; None for a bundle without it.

    ONNX Runtime before 1.25 does not support its opset: the rows of a sentence are then ordinary rows.
    """
    try:
        if graph is None:
            return None
        return open_session(graph)
    except BundleError as error:
        _log.info("the step of beam search was passed over: %s", error)
        return None


def open_session(
    bundle: Files, graph: Graph, *, threads: int, providers: Sequence[Provider], saved: Path | None = None
) -> Any:
    """Load one graph of a bundle.

    Args:
        bundle: the bundle.
        graph: which of its graphs.
        threads: threads of each operator; 0 for one per core, or fewer under a CPU quota.
        providers: of `providers_of`.
        saved: where to write the graph as ONNX Runtime runs it, after its optimisations; its weights go beside it.

    Raises:
        BundleError: it contains more than tx-export writes, ONNX Runtime does not load it or would compute it wrongly,
            or it differs from the manifest.
        MissingLibrary: ONNX Runtime cannot start the first provider.
        ResourceError: there is not enough memory.
    """
    files = files_of(bundle)
    path = files / graph.file
    _check_version(path, graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal only: errors are exceptions
    options.intra_op_num_threads = threads or limited()
    # The encoder's temporaries are large: fresh pages for each of them cost more than what is computed in them. The
    # step's are small, and as fast without an arena, which would only hold them.
    options.enable_cpu_mem_arena = graph.role in ("encoder", "decoder_beams")
    # Each session has threads of its own. By default they wait actively for about 10 ms after a run, in which they
    # take a core from the other session, as at each change between the encoder and the steps.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    first = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if first == CPU:
        # On the CPU, Add and LayerNormalization are three times as fast as SkipLayerNormalization, which sums one
        # element after the other (Welford 1962) and divides at each.
        options.add_session_config_entry("optimization.disable_specified_optimizers", "SkipLayerNormFusion")
    else:
        # A block planned for all temporaries of a run, by its sizes, fits no hole that other sizes left: the encoder's
        # memory doubles once more than it need, and ONNX Runtime 1.23 still allocates in the third run at some sizes.
        options.enable_mem_pattern = False
    if saved is not None:
        options.optimized_model_filepath = str(saved)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", saved.name + ".bin")
    options.add_session_config_entry("session.load_model_format", "ONNX")  # never the names of ONNX Runtime
    avoid_overflow(options)
    try:
        checked = checked_graph(files, graph.file)
        model = _in_archive(files, checked, options) if isinstance(files, Archive) else str(path)
        # Without a fallback of its own, which would print on standard output.
        kind = onnxruntime.InferenceSession if first == CPU else _GpuSession
        session = kind(model, options, providers=list(providers), enable_fallback=0)
    except TxportError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        raise _not_loaded(path, error) from error
    if session.get_providers()[0] != first:  # ONNX Runtime continues without a provider that it cannot start
        raise no_cuda(why_no_cuda())
    for given, listed in ((session.get_inputs(), graph.inputs), (session.get_outputs(), graph.outputs)):
        found = {(tensor.name, tensor.type, tuple(tensor.shape)) for tensor in given}
        if found != {(tensor.name, f"tensor({_TYPES[tensor.dtype]})", tensor.shape) for tensor in listed}:
            raise BundleError(f"{path} has other inputs or outputs than the manifest: export the bundle again")
    return session


def _check_version(path: File, graph: Graph) -> None:
    """Refuse a graph with an operator that this version computes wrongly, without an error, in rows after the first.

    Raises:
        BundleError: it has one.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", onnxruntime.__version__)[:3])
    if version < READS_BIAS and b"MultiHeadAttention" in path.read_bytes():
        raise BundleError(
            f"ONNX Runtime {onnxruntime.__version__} computes the lowering {graph.lowering} of {path} wrongly in "
            f"batches: install {'.'.join(map(str, READS_BIAS))} or newer, or use a bundle with the lowering scatter"
        )


def avoid_overflow(options: Any) -> None:
    """Have int8 products added in 32 bits on every processor.

    x86-64 without VNNI adds pairs of them in 16 bits, which overflow, unless this option is set. With VNNI this
    would only cost the time that it and AMX save.
    """
    if not _has_vnni():
        options.add_session_config_entry("session.x64quantprecision", "1")


def _in_archive(archive: Archive, model: bytes, options: Any) -> bytes:
    """Return a graph of an archive for ONNX Runtime, which maps its weights if that is a file, and copies them if not.

    Raises:
        BundleError: another file has taken the place of the archive.
        MissingLibrary: ONNX Runtime is too old for a bundle in memory.
    """
    path = archive.path
    if path is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        return moved(model, path.name, archive.span(WEIGHTS)[0])
    if not hasattr(options, "add_external_initializers_from_files_in_memory"):
        raise MissingLibrary(
            f"ONNX Runtime {onnxruntime.__version__} opens no bundle in memory: install a newer one, or give its file"
        )
    weights = archive.view(WEIGHTS)
    options.add_external_initializers_from_files_in_memory([Path(WEIGHTS).name], [weights], [len(weights)])
    return model


def _not_loaded(path: File, error: Exception) -> TxportError:
    """Find the error for a session that does not open: the provider's fault, too little memory, or the graph's."""
    reason = reason_of(error)
    found = failure(f"ONNX Runtime {onnxruntime.__version__} does not load {path}: {reason}", BundleError)
    if re.match(r"CU\w+ failure", reason) and not isinstance(found, ResourceError):
        return no_cuda(why_no_cuda(reason))
    return found


def _has_vnni() -> bool:
    """Return whether this processor adds products of 8 bits in 32 bits, by its flags in Linux."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False
    return not flags.isdisjoint(("avx512_vnni", "avx_vnni"))


def reason_of(error: Exception) -> str:
    """Return the first line of ONNX Runtime's message, without its error codes, C++ source locations and final period.

    Of a failure of CUDA what failed and why, as "CUDA failure 35: CUDA driver version is insufficient".
    """
    line = str(error).strip().partition("\n")[0]
    if cuda := re.search(r"CU\w+ failure \d+: .*?(?= ; GPU=)", line):
        return cuda[0]
    for noise in (r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", r"Load model from .*? failed: ?", r"/\S+\.(cc|h):\d+ .*\) "):
        line = re.sub(noise, "", line)
    return line.rstrip(".")

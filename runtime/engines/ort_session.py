"""Sessions of ONNX Runtime: choice of the provider and the decoder step, and errors in one sentence."""

import logging
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
from txport.runtime.engines.external_data import with_location
from txport.runtime.errors import BundleError, MissingLibrary, ResourceError, TxportError, failure
from txport.runtime.system import limited

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
Provider = str | tuple[str, dict[str, str]]
# TF32, the default, keeps only 10 bits of each factor, and ids would differ from PyTorch's; so products use full
# float32. The arena grows by powers of two (the default), so that it stops growing after a few runs. Attention uses the
# kernels of ONNX Runtime (flash 1, memory efficient 2, plain 16, and XQA by default), never those of cuDNN, the
# default from Hopper on. ONNX Runtime keeps cuDNN's code for the thread that first ran it and unloads it when that
# thread ends; captured steps then ran whatever code had replaced it.
CUDA_OPTIONS = {"use_tf32": "0", "sdpa_kernel": "19"}
_TYPES = {"float32": "float", "float16": "float16", "int64": "int64", "int32": "int32", "bool": "bool"}
# Microseconds of active waiting of threads for the next run or operator; longer than the host takes between steps.
SPIN_US = "500"
# The first version whose MultiHeadAttention reads a bias of one head, [batch, 1, 1, source], correctly in all rows.
READS_BIAS = (1, 21, 1)
# Folder of the weights of a graph that is not read from a file.
_FOLDER = "session.model_external_initializers_file_folder_path"
_log = logging.getLogger(__name__)


class _GpuSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that is opened and closed while no stream of the device is captured."""

    _alone = WHOLE_DEVICE  # a global may be gone when the interpreter ends

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with self._alone:
            super().__init__(*arguments, **options)

    def __del__(self) -> None:
        with self._alone:
            self.__dict__.clear()


def run(session: Any, binding: Any, options: Any = None) -> None:
    """Run a session on its bound buffers.

    Raises:
        EngineError: ONNX Runtime failed.
        MissingLibrary: the CUDA provider does not find cuDNN, which it loads at the first use.
        ResourceError: ONNX Runtime could not allocate memory.
    """
    try:
        session.run_with_iobinding(binding, options)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        if "cuDNN is unavailable" in str(error):
            raise no_cuda(missing("libcudnn.so.9")) from error
        raise failure(f"ONNX Runtime failed: {reason_of(error)}") from error


def providers_of(device: str, **cuda: str) -> list[Provider]:
    """Load the libraries of a device, and return ONNX Runtime's providers, the one of the device first.

    Args:
        device: "cpu" or "cuda".
        cuda: further options of the CUDA provider.

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
    """Return the first of these decoder steps that the installed version can load, and its session."""
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
    """Refuse a step if ONNX Runtime's CUDA attention would read its masks at misaligned addresses.

    The operator loads eight values of a mask at a time, also if the row length is not a multiple of 8. A misaligned
    address then destroys the CUDA context (microsoft/onnxruntime#28366). Buffers are powers of two or the limits of the
    bundle, so only the limits need this check.

    Raises:
        BundleError: the step contains the operator, and a limit is not a multiple of 8.
    """
    if graph.lowering == "tensorscatter" and (limits.source % 8 or limits.target % 8):
        raise BundleError(
            f"ONNX Runtime cannot run the lowering tensorscatter on a GPU for up to {limits.source} source and "
            f"{limits.target} target tokens: export the bundle again with --max-source and --max-target that are "
            "multiples of 8, or with the lowering ort or scatter"
        )


def open_beams(graph: Graph | None, open_session: Callable[[Graph], Any]) -> Any | None:
    """Return the session of the step of beam search, `decoder_beams`; None if it is missing or cannot be loaded.

    ONNX Runtime before 1.25 does not support its opset. Beam search then uses the ordinary step.
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
        graph: the graph.
        threads: number of threads of each operator; 0 for one per core, or fewer under a CPU quota.
        providers: the result of `providers_of`.
        saved: path for a copy of the graph after ONNX Runtime's optimisations, with its weights beside it.

    Raises:
        BundleError: the graph contains elements that tx-export does not write, ONNX Runtime does not load it or would
            compute it wrongly, or it differs from the manifest.
        MissingLibrary: ONNX Runtime cannot start the first provider.
        ResourceError: there is not enough memory.
    """
    files = files_of(bundle)
    path = files / graph.file
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # fatal messages only: errors are raised as exceptions
    options.intra_op_num_threads = threads or limited()
    # The temporaries of the encoder are large, and without an arena, new memory pages for them would take more time
    # than the computation. Those of a step are small, so an arena would only hold memory without a gain.
    options.enable_cpu_mem_arena = graph.role in ("encoder", "decoder_beams")
    # Each session has separate threads. By default they wait actively for about 10 ms after a run. At each change
    # between the encoder and the steps, they would take cores from the other session.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    first = providers[0] if isinstance(providers[0], str) else providers[0][0]
    if first == CPU:
        # On the CPU, Add and LayerNormalization are three times as fast as the fused SkipLayerNormalization, which adds
        # elements one by one (Welford 1962) with a division for each.
        options.add_session_config_entry("optimization.disable_specified_optimizers", "SkipLayerNormFusion")
    else:
        # A memory pattern is one block for all temporaries of a run. It does not fit into the gaps that runs with other
        # sizes left, so the encoder's memory would double once more than needed. ONNX Runtime 1.23 would also still
        # allocate in the third run at some sizes, which a captured step cannot do.
        options.enable_mem_pattern = False
    if saved is not None:
        options.optimized_model_filepath = str(saved)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", saved.name + ".bin")
    options.add_session_config_entry("session.load_model_format", "ONNX")  # not by the file's name
    avoid_overflow(options)
    try:
        graph_bytes = checked_graph(files, graph.file)
        model: bytes | str = graph_bytes
        _check_version(path, graph, graph_bytes)
        # The bytes that were checked, since the file may change.
        if isinstance(files, Archive):
            model = _in_archive(files, graph_bytes, options)
        else:
            options.add_session_config_entry(_FOLDER, str((files / WEIGHTS).parent))
        # The fallback of ONNX Runtime is disabled because it prints to standard output.
        kind = onnxruntime.InferenceSession if first == CPU else _GpuSession
        session = kind(model, options, providers=list(providers), enable_fallback=0)
    except TxportError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise _not_loaded(path, error) from error
    if session.get_providers()[0] != first:  # ONNX Runtime continues without a provider that it cannot start
        raise no_cuda(why_no_cuda())
    for actual, expected in ((session.get_inputs(), graph.inputs), (session.get_outputs(), graph.outputs)):
        signatures = {(tensor.name, tensor.type, tuple(tensor.shape)) for tensor in actual}
        if signatures != {(tensor.name, f"tensor({_TYPES[tensor.dtype]})", tensor.shape) for tensor in expected}:
            raise BundleError(f"{path} has other inputs or outputs than the manifest: export the bundle again")
    return session


def _check_version(path: File, graph: Graph, model: bytes) -> None:
    """Refuse a graph with an operator that this version computes wrongly in all rows after the first, without an error.

    Raises:
        BundleError: the graph has such an operator.
    """
    version = tuple(int(number) for number in re.findall(r"\d+", onnxruntime.__version__)[:3])
    if version < READS_BIAS and b"MultiHeadAttention" in model:
        raise BundleError(
            f"ONNX Runtime {onnxruntime.__version__} computes the lowering {graph.lowering} of {path} wrongly in "
            f"batches: install {'.'.join(map(str, READS_BIAS))} or newer, or use a bundle with the lowering scatter"
        )


def avoid_overflow(options: Any) -> None:
    """Set ONNX Runtime's option for int8 products without overflow, if this processor needs it.

    Without the option, x86-64 processors without VNNI add pairs of products in 16 bits, which may overflow. Processors
    with VNNI add in 32 bits; there, the option would only disable the fast instructions of VNNI and AMX.
    """
    if not _has_vnni():
        options.add_session_config_entry("session.x64quantprecision", "1")


def _in_archive(archive: Archive, model: bytes, options: Any) -> bytes:
    """Return a graph of an archive for ONNX Runtime. The weights of an archive file are mapped, others are copied.

    Raises:
        BundleError: the file of the archive was replaced.
        MissingLibrary: ONNX Runtime is too old for a bundle in memory.
    """
    path = archive.path
    if path is not None:
        options.add_session_config_entry(_FOLDER, str(path.parent))
        return with_location(model, path.name, archive.span(WEIGHTS)[0])
    if not hasattr(options, "add_external_initializers_from_files_in_memory"):
        raise MissingLibrary(
            f"ONNX Runtime {onnxruntime.__version__} opens no bundle in memory: install a newer one, or give its file"
        )
    weights = archive.view(WEIGHTS)
    options.add_external_initializers_from_files_in_memory([Path(WEIGHTS).name], [weights], [len(weights)])
    return model


def _not_loaded(path: File, error: Exception) -> TxportError:
    """Return the error for a session that does not open: a missing provider, too little memory or a damaged graph."""
    reason = reason_of(error)
    translated = failure(f"ONNX Runtime {onnxruntime.__version__} does not load {path}: {reason}", BundleError)
    if re.match(r"CU\w+ failure", reason) and not isinstance(translated, ResourceError):
        return no_cuda(why_no_cuda(reason))
    return translated


def _has_vnni() -> bool:
    """Return whether this processor has VNNI, which adds 8-bit products in 32 bits, by its flags in Linux."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False
    return not flags.isdisjoint(("avx512_vnni", "avx_vnni"))


def reason_of(error: Exception) -> str:
    """Return the first line of ONNX Runtime's message, without its error codes, C++ source locations and final period.

    For CUDA errors, it is the code and the reason: "CUDA failure 35: CUDA driver version is insufficient".
    """
    line = str(error).strip().partition("\n")[0]
    if cuda := re.search(r"CU\w+ failure \d+: .*?(?= ; GPU=)", line):
        return cuda[0]
    for noise in (r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", r"Load model from .*? failed: ?", r"/\S+\.(cc|h):\d+ .*\) "):
        line = re.sub(noise, "", line)
    return line.rstrip(".")

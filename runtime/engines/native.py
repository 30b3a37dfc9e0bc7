"""The fused engine for CPUs (`runtime/cpp/src/fused`), driven through its C ABI (`txport/engine.h`).

The library `libtxport_engine.so` receives the path of the weights, the model's sizes and its table of parameters from a
manifest that was checked in Python, and checks the table itself. It reads neither JSON nor hashes. Encoder and groups
of steps are single calls. ctypes releases Python's global lock during each call. Arrays of int64 are not copied.
"""

import ctypes
import os
from contextlib import AbstractContextManager, nullcontext
from ctypes import byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from txport.runtime.bundle.archive import Files, files_of
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import WEIGHTS, Limits, Parameter, SpecialTokens
from txport.runtime.engine import Int64, Sources, check_vector_shape
from txport.runtime.engines.native_beams import NativeBeamSearch
from txport.runtime.engines.native_state import Handle, NativeState, address, check, int64, same_length
from txport.runtime.errors import EngineError, MissingLibrary
from txport.runtime.search.settings import Search
from txport.runtime.system import library_name
from txport.runtime.version import VERSION

LIBRARY = library_name("txport_engine")
# Path of the library, instead of the one in the package; if it is empty, the fused engine is disabled.
VARIABLE = "TXPORT_ENGINE_LIBRARY"
# Folders of a clone in which `make fused` and `make cpp` build the library.
_BUILT = ("build/cpp/engine", "build/cpp/release")
_NO_TABLE = "its manifest has no table of parameters (export it again)"
_REMEDY = f"install a wheel that has it, run make fused in a clone, or name it by {VARIABLE}"

# Functions of engine.h that return a code, and their arguments.
_ARGUMENT_TYPES: dict[str, tuple[Any, ...]] = {
    "txport_engine_create": (c_void_p, c_void_p, c_void_p),
    "txport_engine_name": (c_void_p, c_void_p),
    "txport_engine_get_facts": (c_void_p, c_void_p),
    "txport_engine_encode": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p),
    "txport_engine_encode_features": (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_void_p),
    "txport_engine_allocate": (c_void_p, c_int64, c_int64, c_int64, c_int32, c_int64, c_void_p),
    "txport_state_place": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
    "txport_state_restrict": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "txport_state_step": (c_void_p, c_int64),
    "txport_state_read": (c_void_p, c_void_p, c_int64, c_void_p, c_void_p),
    "txport_state_override": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "txport_state_logits": (c_void_p, c_int64, c_void_p, c_void_p),
    "txport_state_log_probabilities": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "txport_state_top": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
    "txport_state_reorder": (c_void_p, c_int64, c_void_p),
    "txport_state_moved": (c_void_p, c_int64, c_void_p, c_int64, c_void_p),
    "txport_beam_search_create": (c_void_p, c_void_p, c_void_p),
    "txport_hypotheses_create": (c_void_p, c_void_p, c_void_p),
    "txport_state_search": (c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p),
    "txport_hypotheses_answer": (c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
}
# All other functions, with their result and arguments.
_PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "txport_version": (c_char_p, ()),
    "txport_message": (c_char_p, ()),
    "txport_engine_first_target": (c_int64, (c_void_p, c_int64)),
    "txport_engine_close": (None, (c_void_p,)),
    "txport_engine_memory_free": (None, (c_void_p,)),
    "txport_state_free": (None, (c_void_p,)),
    "txport_beam_search_free": (None, (c_void_p,)),
    "txport_hypotheses_free": (None, (c_void_p,)),
}


class _Parameter(ctypes.Structure):
    """The C struct `txport_parameter`."""

    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_char_p),
        *((name, c_int64) for name in ("offset", "scales", "dimensions")),
        ("shape", c_int64 * 2),
        ("strides", c_int64 * 2),
    ]

    @classmethod
    def of(cls, tensor: Parameter) -> "_Parameter":
        """Convert one row of the table."""
        return cls(
            name=tensor.name.encode(),
            dtype=tensor.dtype.encode(),
            offset=tensor.offset,
            scales=-1 if tensor.scales is None else tensor.scales,
            dimensions=len(tensor.shape),
            shape=(c_int64 * 2)(*tensor.shape),
            strides=(c_int64 * 2)(*tensor.strides),
        )


_SIZES = ("encoder_layers", "decoder_layers", "d_model", "heads", "head_dim", "source_vocabulary", "target_vocabulary")
_LIMITS = ("batch", "source", "target")
_TOKENS = ("pad", "unk", "bos", "eos")


class _Model(ctypes.Structure):
    """The C struct `txport_model`."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("parameter_size", c_size_t),
        ("weights", c_char_p),
        ("weights_bytes", c_int64),
        ("precision", c_char_p),
        *((name, c_int64) for name in (*_SIZES, *_LIMITS, *_TOKENS)),
        ("norm", c_char_p),
        ("activation", c_char_p),
        ("embedding_scale", c_double),
        ("layer_norm_epsilon", c_double),
        ("parameters", ctypes.POINTER(_Parameter)),
        ("parameter_count", c_int64),
        ("norm_kind", c_char_p),
        ("encoder_heads", c_int64),
        ("weights_data", c_void_p),
        ("feature_size", c_int64),
    ]

    @classmethod
    def of(cls, files: Files, manifest: Manifest, weights: memoryview | None) -> "_Model":
        """Return a bundle's model.

        Args:
            files: files of the bundle.
            manifest: its manifest.
            weights: the bytes of the weights, if they are not in a separate file.

        Raises:
            EngineError: the manifest has no table of parameters.
        """
        if manifest.parameters is None:
            raise EngineError(f"the fused engine cannot run {files}: {_NO_TABLE}")
        architecture = manifest.parameters.architecture
        tensors = manifest.parameters.tensors
        return cls(
            struct_size=ctypes.sizeof(cls),
            parameter_size=ctypes.sizeof(_Parameter),
            weights=os.fsencode(str(files / WEIGHTS)),
            weights_bytes=manifest.files[WEIGHTS].bytes,
            precision=manifest.precision.weights.encode(),
            **{name: getattr(manifest.model, name) for name in _SIZES},
            **{name: getattr(manifest.limits, name) for name in _LIMITS},
            **{name: getattr(manifest.tokens, name) for name in _TOKENS},
            norm=architecture.norm.encode(),
            activation=architecture.activation.encode(),
            embedding_scale=architecture.embedding_scale,
            layer_norm_epsilon=architecture.layer_norm_epsilon,
            parameters=(_Parameter * len(tensors))(*map(_Parameter.of, tensors)),
            parameter_count=len(tensors),
            norm_kind=architecture.norm_kind.encode(),
            encoder_heads=manifest.model.encoder_heads or 0,
            weights_data=None if weights is None else address(np.frombuffer(weights, np.uint8)),
            feature_size=manifest.model.feature_size or 0,
        )


class _Options(ctypes.Structure):
    """The C struct `txport_engine_options`."""

    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_char_p),
        ("engine", c_char_p),
        ("lowering", c_char_p),
        ("threads", c_int32),
        ("many", c_int32),
        ("warning", c_void_p),
        ("warning_user", c_void_p),
    ]


class _Facts(ctypes.Structure):
    """The C struct `txport_engine_facts`."""

    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in (*_LIMITS, *_TOKENS, "vocabulary", "poll", "recomputes_logits")),
    ]


def find_library() -> Path | None:
    """Return the file of the library: from the environment variable, this package or this clone, in this order."""
    path = os.environ.get(VARIABLE)
    if path is not None:
        if path:
            return Path(path)
        return None
    root = Path(__file__).parents[2]
    candidates = [Path(__file__).with_name(LIBRARY), *(root / folder / LIBRARY for folder in _BUILT)]
    return next((file for file in candidates if file.is_file()), None)


def missing() -> str | None:
    """Return the reason why there is no library and how to get it, or None if there is one."""
    if find_library() is not None:
        return None
    return f"{LIBRARY} is not here: {_REMEDY}"


@cache
def _load(file: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(os.fspath(file))
        for name, arguments in _ARGUMENT_TYPES.items():
            function = getattr(library, name)
            function.restype = c_int32
            function.argtypes = arguments
        for name, (result, arguments) in _PLAIN.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise MissingLibrary(f"{file} cannot be loaded ({error}): {_REMEDY}") from error
    version = library.txport_version().decode()
    # Structs and functions may differ between versions, and a mismatch would corrupt memory.
    if version != VERSION:
        raise MissingLibrary(f"{file} is of txport {version}, and this is {VERSION}: {_REMEDY}")
    return library


def _weights(files: Files, manifest: Manifest) -> AbstractContextManager[memoryview | None]:
    """Map the weights of an archive after checking their size."""
    if isinstance(files, Path):
        return nullcontext()
    manifest.check_file(files, WEIGHTS, contents=False)
    return files.mapped(WEIGHTS)


class NativeEngine:
    """A bundle on the fused engine.

    Args:
        bundle: the bundle.
        manifest: its manifest, already checked.
        threads: threads that share the work of a batch; 0 for all cores.
        concurrent: whether several threads will run batches at once; each batch then uses one thread.

    Raises:
        MissingLibrary: the library is missing, or has another version.
        BundleError: the weights file is damaged.
        EngineError: the engine cannot run the bundle; the message contains the reason.
        ResourceError: there is not enough memory.
    """

    def __init__(self, bundle: Files, manifest: Manifest, threads: int = 0, concurrent: bool = False) -> None:
        file = find_library()
        if file is None:
            raise MissingLibrary(f"the fused engine cannot be used: {missing()}")
        self.library = library = _load(file)
        options = _Options(struct_size=ctypes.sizeof(_Options), threads=threads, many=concurrent)
        handle = c_void_p()
        facts = _Facts(struct_size=ctypes.sizeof(_Facts))
        name = c_char_p()
        files = files_of(bundle)
        with _weights(files, manifest) as weights:
            model = _Model.of(files, manifest, weights)
            check(library, library.txport_engine_create(byref(model), byref(options), byref(handle)))
        self.handle = Handle(handle, library.txport_engine_close)
        check(library, library.txport_engine_get_facts(handle, byref(facts)))
        check(library, library.txport_engine_name(handle, byref(name)))
        self.name = (name.value or b"").decode()
        self.limits = Limits(facts.batch, facts.source, facts.target)
        self.tokens = SpecialTokens(facts.pad, facts.unk, facts.bos, facts.eos)
        self.ragged = True  # kernels skip padding, so sentences of all lengths share a batch
        self.restricts = True
        self.recomputes_logits = bool(facts.recomputes_logits)
        self.poll: int = facts.poll
        self.vocabulary: int = facts.vocabulary
        self._feature_size = manifest.model.feature_size

    def encode(self, input_ids: Sources, source_lengths: Int64) -> Handle:
        """Run the encoder on int64 `[batch, source]` ids, padded with pad, or on vectors; lengths are `[batch]`."""
        library = self.library
        if self._feature_size is None:
            sources: Sources = np.ascontiguousarray(input_ids, np.int64)
            encode = library.txport_engine_encode
        else:
            sources = np.ascontiguousarray(input_ids, np.float32)
            encode = library.txport_engine_encode_features
            check_vector_shape(sources, self._feature_size)
        lengths = int64(source_lengths)
        memory = c_void_p()
        same_length(input_ids=sources, source_lengths=lengths)
        arguments = address(sources), address(lengths), *sources.shape[:2], byref(memory)
        check(library, encode(self.handle.value, *arguments))
        return Handle(memory, library.txport_engine_memory_free)

    def first_target(self, source: int) -> int:
        """Return the initial cache length; see `txport.runtime.engine.Engine.first_target`."""
        target: int = self.library.txport_engine_first_target(self.handle.value, source)
        return target

    def allocate(
        self, rows: int, source: int, target: int, *, logits: bool = False, top: int = 0, beams: int = 1
    ) -> "NativeState":
        """Return finished rows for `rows` sentences of up to `source` tokens and `target` new tokens.

        `logits` and `top` make these results available besides tokens; see `txport.runtime.engine.Engine.allocate`.
        """
        state = c_void_p()
        library = self.library
        arguments = rows, source, target, logits, top, byref(state)
        check(library, library.txport_engine_allocate(self.handle.value, *arguments))
        handle = Handle(state, library.txport_state_free)
        return NativeState(library, handle, (rows, source, target), self.vocabulary)

    def beam_policy(self, search: Search) -> NativeBeamSearch:
        """Return the beam search of the library; see `txport.runtime.search.policy.SearchingEngine`."""
        return NativeBeamSearch(self, search)

"""The fused engine of a bundle that is being written or verified, where its library is here."""

from collections.abc import Callable
from pathlib import Path

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import NativeEngine, missing
from txport.runtime.errors import EngineError, MissingLibrary


def fused_engine(directory: Path, manifest: Manifest, say: Callable[[str], None]) -> NativeEngine | None:
    """Open it, or say why a bundle that has parameters for it is verified without it.

    Raises:
        BundleError: the engine refuses the bundle, which would then run on ONNX Runtime alone.
        ResourceError: there is not enough memory.
    """
    if manifest.parameters is None:
        return None
    if (reason := missing()) is None:
        try:
            return NativeEngine(directory, manifest)
        except (EngineError, MissingLibrary) as error:
            reason = str(error)
    say(f"without the fused engine for CPUs: {reason}")
    return None

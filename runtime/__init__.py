"""Run exported bundles. The base needs at most numpy; no module of this package imports torch or txport.exporter.

from txport.runtime import Translator

translator = Translator("bundle")
for result in translator.translate(["a sentence", "another one"]):
    print(result.text)
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from txport.runtime.errors import (
    BundleError,
    CheckFailed,
    CheckpointError,
    EngineError,
    InputError,
    MissingLibrary,
    ResourceError,
    TxportError,
)

# From 1.29 on, ONNX Runtime sends telemetry and keeps a database in the user's cache, unless this variable is set
# before its import. A library for translation should not send data. Set the variable to 0 to enable telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from txport.runtime.bundle.manifest import Manifest
    from txport.runtime.documents.document import Document, Part
    from txport.runtime.options import Options
    from txport.runtime.results import AttentionMaps, Piece, Score, Translation
    from txport.runtime.search.queue import DeadlineExceeded, Load
    from txport.runtime.text.alignment import Alignment
    from txport.runtime.translator import Translator

__all__ = [
    "Alignment",
    "AttentionMaps",
    "BundleError",
    "CheckFailed",
    "CheckpointError",
    "DeadlineExceeded",
    "Document",
    "EngineError",
    "InputError",
    "Load",
    "Manifest",
    "MissingLibrary",
    "Options",
    "Part",
    "Piece",
    "ResourceError",
    "Score",
    "Translation",
    "Translator",
    "TxportError",
]

# Names that are imported on first use: they need numpy, and `Translator` needs the libraries that run a bundle.
_LAZY = {
    "Alignment": "txport.runtime.text.alignment",
    "AttentionMaps": "txport.runtime.results",
    "DeadlineExceeded": "txport.runtime.search.queue",
    "Document": "txport.runtime.documents.document",
    "Load": "txport.runtime.search.queue",
    "Manifest": "txport.runtime.bundle.manifest",
    "Options": "txport.runtime.options",
    "Part": "txport.runtime.documents.document",
    "Piece": "txport.runtime.results",
    "Score": "txport.runtime.results",
    "Translation": "txport.runtime.results",
    "Translator": "txport.runtime.translator",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'txport.runtime' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)

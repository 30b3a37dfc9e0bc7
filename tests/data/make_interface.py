"""Makes `tests/data/interface.json`: what two small models' graphs take and give, for the C++ runtime to compare.

Write it again with `python tests/data/make_interface.py`.
"""

import json
from pathlib import Path
from typing import Any, get_args

from txport.runtime.bundle import interface, manifest
from txport.runtime.bundle.schema import LOWERINGS, DType, ModelSizes, OptionalRole, Role
from txport.runtime.bundle.strict_json import encode

FILE = Path(__file__).with_name("interface.json")
MODELS: tuple[tuple[ModelSizes, DType], ...] = (
    (ModelSizes(1, 2, 12, 3, 4, 50, 60), "float32"),
    (ModelSizes(2, 1, 16, 2, 8, 70, 70), "float16"),
    (ModelSizes(1, 1, 16, 2, 8, 70, 70, copies=True), "float32"),
    (ModelSizes(3, 1, 16, 2, 12, 70, 70, encoder_heads=4), "float32"),
    (ModelSizes(2, 1, 16, 2, 8, 70, 70, feature_size=80), "float16"),
)


def value() -> dict[str, Any]:
    """The contract, and the constants that every runtime shares."""
    models = [
        {"model": encode(sizes), "type": floating}
        | {role: encode(interface.interface(role, sizes, floating)) for role in get_args(Role) + get_args(OptionalRole)}
        for sizes, floating in MODELS
    ]
    return {
        "format_version": manifest.FORMAT_VERSION,
        "files": {"manifest": manifest.NAME, "golden": manifest.GOLDEN, "weights": manifest.WEIGHTS},
        "lowerings": list(LOWERINGS),
        "masked": interface.MASKED,
        "optional_inputs": list(interface.OPTIONAL_INPUTS),
        "models": models,
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(value(), indent=1) + "\n")

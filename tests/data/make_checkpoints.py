"""Records tests/data/checkpoints: the small trained models whose translations many tests depend on.

    PYTHONPATH=tests/helpers python tests/data/make_checkpoints.py

Training gives different weights on different processors, and a model trained for seconds then gives other translations,
some of them empty. Recorded weights give the same translations everywhere.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from checkpoints import make_tiny_checkpoint

CHECKPOINTS = Path(__file__).with_name("checkpoints")
MODELS: dict[str, dict[str, Any]] = {
    "tiny": {},
    # Encoder and decoder have heads of different widths, so rotary positions of their own.
    "rotary": {"positions": "rotary", "heads": 2, "decoder_heads": 4},
}


def main() -> None:
    for name, fields in MODELS.items():
        with tempfile.TemporaryDirectory() as scratch:
            make_tiny_checkpoint(Path(scratch) / name, **fields)
            shutil.rmtree(CHECKPOINTS / name, ignore_errors=True)
            shutil.copytree(Path(scratch) / name, CHECKPOINTS / name)


if __name__ == "__main__":
    main()

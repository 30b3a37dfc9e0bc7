"""The version of txport, one for Python and C++ (`runtime/cpp/VERSION`)."""

from pathlib import Path

# Not by importlib.metadata, which has a parser of e-mail: 2 MB.
VERSION = Path(__file__).with_name("cpp").joinpath("VERSION").read_text(encoding="ascii").strip()

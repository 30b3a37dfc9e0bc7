"""The version of txport, one for Python and C++ (`runtime/cpp/VERSION`)."""

from pathlib import Path

# importlib.metadata would import a parser of e-mail, which takes 2 MB.
VERSION = Path(__file__).with_name("cpp").joinpath("VERSION").read_text(encoding="ascii").strip()

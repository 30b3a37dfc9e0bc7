"""The version of txport, one for Python and C++ (`runtime/cpp/VERSION`)."""

from importlib.metadata import version

VERSION = version("txport")

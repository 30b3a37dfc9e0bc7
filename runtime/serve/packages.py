"""Packages of Argos Translate as arguments of tx-serve: tx-get makes a bundle of each in its cache, once."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

from txport.runtime.bundle.kinds import kind_of
from txport.runtime.bundle.names import Name
from txport.runtime.errors import InputError
from txport.runtime.files import file_errors

_GET = "import sys; sys.argv[0] = 'tx-get'; from txport.exporter.entry import get; get()"
_BLOCK = 1 << 20


def bundle_argument(argument: str) -> str:
    """Return an argument of tx-serve that names a bundle: a package becomes NAME=BUNDLE, others stay unchanged.

    NAME is by default the package's own name. The bundle is kept under a name that contains a hash of the package.

    Raises:
        InputError: tx-get cannot make a bundle of the package.
    """
    name, equals, place = argument.partition("=")
    package = Path(place if equals else argument)
    if not package.exists() or kind_of(package) != "argos":
        return argument
    stem = package.resolve().name.removesuffix(".argosmodel")
    cached = Name(f"argos/{re.sub(r'[^A-Za-z0-9_.-]', '_', stem)}", _digest(package))
    if not cached.directory.exists():
        # Another process: the server's memory stays free of PyTorch.
        command = [sys.executable, "-c", _GET, str(cached), "--source", os.fspath(package.absolute())]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise InputError(f"tx-get could not make a bundle of {package}, for the reason above")
    return f"{name if equals else stem}={cached.directory}"


def _digest(package: Path) -> str:
    """Return a hash of a package, or of the files of an installed one."""
    digest = hashlib.sha256()
    with file_errors(package, ours=False):
        for file in sorted(package.rglob("*")) if package.is_dir() else [package]:
            if not file.is_file():
                continue
            digest.update(f"{file.relative_to(package)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as opened:
                while block := opened.read(_BLOCK):
                    digest.update(block)
    return digest.hexdigest()[:16]

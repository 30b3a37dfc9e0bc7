"""Build of wheels: one that carries the fused engine's library is for one kind of machine and of system.

`TXPORT_WHEEL_ENGINE` names the library; by default it is that of `make fused`. If there is none, or the variable is
empty, the wheel is pure Python and runs everywhere.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

BUILT = Path(__file__).resolve().parent / "build" / "cpp" / "engine" / "libtxport_engine.so"
ENGINE = os.environ.get("TXPORT_WHEEL_ENGINE", str(BUILT) if BUILT.is_file() else "")
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of ELF
APPLE = {0x01000007: "x86_64", 0x0100000C: "arm64"}  # cputype of Mach-O, of 64 bits
# All that a wheel of manylinux may need of the system besides its loader (PEP 600).
SYSTEM = {b"libc.so.6", b"libm.so.6", b"libpthread.so.0", b"libdl.so.2", b"librt.so.1"}


def platform(library: bytes) -> str:
    """Return the tag of the machines that have what a library needs: glibc from the newest symbol that ELF asks for.

    Windows has all that it may ask for from 10 on, macOS from 11 on, for which `make other-systems` compiles.
    """
    if library[:2] == b"MZ":
        return "win_amd64"
    if library[:4] == b"\xcf\xfa\xed\xfe":
        return f"macosx_11_0_{APPLE[int.from_bytes(library[4:8], 'little')]}"
    machine = MACHINES[int.from_bytes(library[18:20], "little")]
    needed = set(re.findall(rb"\0(lib[\w+-]+\.so[.\d]+)(?=\0)", library))
    foreign = {name for name in needed - SYSTEM if not name.startswith(b"libtxport_engine")}
    if foreign:
        return f"linux_{machine}"
    minor = max(int(found) for found in re.findall(rb"\0GLIBC_2\.(\d+)", library))
    return f"manylinux_2_{max(minor, 17)}_{machine}"


class Build(build_py):
    """Build with the library beside the module that loads it."""

    def run(self) -> None:
        super().run()
        if ENGINE and not self.editable_mode:
            shutil.copyfile(ENGINE, Path(self.build_lib, "txport/runtime/engines", Path(ENGINE).name))


class Wheel(bdist_wheel):
    """Wheel for any Python 3 of the library's platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", platform(Path(ENGINE).read_bytes())) if ENGINE else super().get_tag()


class WithLibrary(Distribution):
    """Distribution of one platform, installed where such things are."""

    def has_ext_modules(self) -> bool:
        return bool(ENGINE)


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=WithLibrary)

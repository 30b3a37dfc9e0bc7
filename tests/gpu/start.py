"""Unpacks the kit that this file lies beside, and runs it: python3 start.py SCRATCH [--libraries DIR]... [OPTION...]

SCRATCH is a directory to unpack the kit into, once; results go there, too. --libraries names where
`pip install --target DIR` has put onnxruntime-gpu or tensorrt, if Python does not find them. The other options are
those of tests/gpu/run.py. It needs CPython 3.10 or newer, of a version that the kit is for, no network and no compiler.
"""

import argparse
import contextlib
import hashlib
import os
import sys
import tarfile
import tempfile
from pathlib import Path

LIST = "kit.sha256"


class Unusable(Exception):
    """What the caller must mend; the message is a sentence."""


def verified(parts: Path) -> list[Path]:
    """The parts of the kit, each of which is there and whole."""
    if not (parts / LIST).exists() or not (parts / LIST).read_text():
        raise Unusable(f"{parts / LIST} is missing or empty: copy it again")
    listed = [line.split() for line in (parts / LIST).read_text().splitlines()]
    for digest, name in listed:
        part = parts / name
        if not part.exists():
            raise Unusable(f"{part} is missing: copy it again")
        if hashlib.sha256(part.read_bytes()).hexdigest() != digest:
            raise Unusable(f"{part} is damaged (its SHA-256 is not that in {LIST}): copy it again")
    return [parts / name for _, name in listed]


def unpacked(parts: Path, scratch: Path) -> Path:
    """The root of the kit, which appears by one rename: a run that is cut off, or another beside it, leaves no half."""
    listed = (parts / LIST).read_bytes() if (parts / LIST).exists() else b""
    kit = scratch / f"kit-{hashlib.sha256(listed).hexdigest()[:12]}"
    if kit.exists():
        return kit
    files = verified(parts)
    with tempfile.TemporaryFile() as whole, tempfile.TemporaryDirectory(dir=scratch) as unfinished:
        for part in files:
            whole.write(part.read_bytes())
        whole.seek(0)
        try:
            with tarfile.open(fileobj=whole) as archive:
                archive.extractall(Path(unfinished, "kit"))
        except (EOFError, OSError, tarfile.TarError) as error:
            raise Unusable(f"the kit cannot be unpacked into {scratch} ({error}): is {LIST} cut off?") from None
        with contextlib.suppress(OSError):
            Path(unfinished, "kit").rename(kit)
    return kit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--libraries", type=Path, action="append", default=[], metavar="DIR")
    options, others = parser.parse_known_args()
    version = "python{}.{}".format(*sys.version_info)
    try:
        if missing := [path for path in options.libraries if not path.is_dir()]:
            raise Unusable(f"--libraries {missing[0]}: there is no such directory")
        options.scratch.mkdir(parents=True, exist_ok=True)
        kit = unpacked(Path(__file__).resolve().parent, options.scratch.resolve())
        if not (kit / version).exists():
            made = ", ".join(sorted(path.name for path in kit.glob("python*")))
            raise Unusable(f"this kit is for {made}, and this is {version}: run it with such a one")
    except (OSError, Unusable) as error:
        print(f"start.py: {error}", file=sys.stderr)
        sys.exit(2)
    paths = [*(str(path.resolve()) for path in options.libraries), str(kit / "app")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    more = ["--bundles", str(kit / "bundles"), *(["--programs", str(kit / "programs")] * (kit / "programs").exists())]
    command = [sys.executable, str(kit / "tests/gpu/run.py"), str(options.scratch), *more, *others]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()

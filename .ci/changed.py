"""Print the tests of changed files: `python .ci/changed.py [COMMIT]`, part of `make check`.

Changed are files that differ from the commit, which is HEAD by default, and new ones. The tests of
runtime/text/lines.py are tests/runtime/text/test_lines.py, or, without such a file, those in the nearest folder.
"""

import subprocess
import sys
from pathlib import Path

TESTS = Path("tests")


def tests_of(file: Path) -> list[Path]:
    """The tests of a file of Python."""
    if file.suffix != ".py" or (not (TESTS / file.parts[0]).is_dir() and file.parts[0] != TESTS.name):
        return []
    if file.parts[0] == TESTS.name:
        return [file] if file.name.startswith("test_") and file.exists() else []
    mirror = TESTS / file.with_name(f"test_{file.name}")
    if mirror.exists():
        return [mirror]
    return next(found for folder in mirror.parents if (found := sorted(folder.glob("test_*.py"))))


def main(commit: str) -> None:
    """Print them, one on a line."""
    commands = (["git", "diff", "--name-only", commit], ["git", "ls-files", "--others", "--exclude-standard"])
    names = "".join(subprocess.run(command, check=True, capture_output=True, text=True).stdout for command in commands)
    print(*sorted({str(test) for name in names.splitlines() for test in tests_of(Path(name))}), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["HEAD"])

"""Plants mistakes in the source, one at a time, and prints which test notices each: python tests/helpers/mutants.py

`tests/data/mutants.toml` lists the mutants by area: the file, a text that occurs once in it, its replacement, and the
tests that should notice. Each is planted in place, and the file is always restored. Results are written to
build/mutants.json. The exit code is 1 if a mutant survives.

Mutants of C++ need `TXPORT_CPP_BUILD`, a build folder with tests, in which each is compiled. `--tests REVISION` runs
the tests of another revision on this source.
"""

import argparse
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "data" / "mutants.toml"
RESULTS = ROOT / "build" / "mutants.json"
# A program that runs pytest, without Hypothesis's search for the smallest failing example, which takes the most time.
UNSHRUNK = """
import sys, pytest, hypothesis
phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
hypothesis.settings.register_profile("unshrunk", phases=phases, database=None)
hypothesis.settings.load_profile("unshrunk")
sys.exit(pytest.main(sys.argv[1:]))
"""
PYTEST = [sys.executable, "-c", UNSHRUNK, "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
SECONDS = 540  # limit for the tests of one mutant
KILLED, SURVIVED, SKIPPED, INVALID = "killed", "SURVIVED", "skipped", "INVALID"


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        area: part of txport.
        name: unique in its area.
        file: path in the repository.
        original: text that occurs once in the file.
        mutant: replacement of the text.
        tests: paths of its tests, or names of tests in them, Python or C++, the most likely first.
    """

    area: str
    name: str
    file: str
    original: str
    mutant: str
    tests: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        """True if the file is C++."""
        return not self.file.endswith(".py")

    @property
    def in_build(self) -> bool:
        """True if the file is in the build of the C++ runtime. Tests of the chain of kernels compile it themselves."""
        return self.compiled and not self.file.startswith("tests/gpu/chain/")

    def changed(self, text: str) -> str:
        """Return the text of the file with the mistake.

        Raises:
            ValueError: the original text does not occur exactly once.
        """
        if (count := text.count(self.original)) != 1:
            raise ValueError(f"{self.area}/{self.name}: {self.file} has the text {count} times: update {LIST.name}")
        return text.replace(self.original, self.mutant)


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant: `killed`, `SURVIVED`, `skipped` or `INVALID`, the test or the reason, and the time."""

    area: str
    name: str
    result: str
    test: str
    seconds: float


def read_mutants() -> list[Mutant]:
    """Return all mutants of the list."""
    areas: dict[str, list[dict[str, Any]]] = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [
        Mutant(area, **{**entry, "tests": tuple(entry["tests"])})
        for area, entries in areas.items()
        for entry in entries
    ]


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Plant a mutant, and restore the file afterwards.

    Raises:
        ValueError: the file has uncommitted changes, or lacks the original text.
    """
    file = ROOT / mutant.file
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", file], cwd=ROOT).returncode:
        raise ValueError(f"{mutant.file} has uncommitted changes: commit them first")
    before = file.read_bytes()
    try:
        file.write_text(mutant.changed(before.decode()), encoding="utf-8")
        yield
    finally:
        file.write_bytes(before)


def run(command: Sequence[str | Path], folder: Path = ROOT) -> tuple[int | None, str]:
    """Run a command; return its exit code, None for a timeout, and its output."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # no bytecode of a mutant may remain
    with subprocess.Popen(
        command, cwd=folder, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return None, ""
    return process.returncode, output.decode(errors="replace")


def judge_python(tests: Sequence[str], folder: Path) -> tuple[str, str]:
    """Run Python tests; return the result and the first test that fails."""
    code, output = run([*PYTEST, *tests], folder)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code is None:
        return KILLED, f"timeout after {SECONDS} s"
    if code == 0:
        return SURVIVED, ""
    return (KILLED, failed[1]) if code == 1 and failed else (INVALID, f"pytest ended with {code}: {output[-300:]}")


def judge_compiled(mutant: Mutant, folder: Path) -> tuple[str, str]:
    """Compile a mutant and run its tests; return the result and the first test that fails."""
    build = os.environ["TXPORT_CPP_BUILD"]
    code, output = run(["cmake", "--build", build])
    if code != 0:
        return INVALID, f"it does not compile: {output[-300:]}"
    for file in (test for test in mutant.tests if test.endswith(".cpp")):
        code, output = run([Path(build) / "tests" / "txport_tests", f"--source-file=*{file}", "--abort-after=1"])
        if code != 0:
            case = re.search(r"^TEST CASE: +(.+)$", output, re.MULTILINE)
            return KILLED, f"{file}: {case[1] if case else f'exit code {code}'}"
    python = [test for test in mutant.tests if not test.endswith(".cpp")]
    return judge_python(python, folder) if python else (SURVIVED, "")


def judge(mutant: Mutant, folder: Path) -> Outcome:
    """Plant one mutant and run its tests."""
    start = time.monotonic()
    missing = [test for test in mutant.tests if not (folder / test.partition("::")[0]).exists()]
    if missing:
        result, test = SKIPPED, f"{missing[0]} does not exist"
    elif mutant.in_build and "TXPORT_CPP_BUILD" not in os.environ:
        result, test = SKIPPED, "needs TXPORT_CPP_BUILD"
    else:
        with planted(mutant):
            result, test = judge_compiled(mutant, folder) if mutant.in_build else judge_python(mutant.tests, folder)
    return Outcome(mutant.area, mutant.name, result, test, round(time.monotonic() - start, 1))


def folder_of(revision: str | None) -> Path:
    """Return the folder with the tests: the repository, or links to it beside the tests of another revision."""
    if revision is None:
        return ROOT
    folder = ROOT / "build" / "mutants" / revision.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", revision, "tests"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tests:
        tests.extractall(folder)
    for entry in ROOT.iterdir():
        if entry.name not in ("tests", ".git"):
            (folder / entry.name).symlink_to(entry)
    return folder


def check_killers(outcomes: Sequence[Outcome], folder: Path) -> str:
    """Return the message of a Python test that also fails without any mutant; empty if there is none."""
    tests = [each.test for each in outcomes if each.result == KILLED and ".py::" in each.test]
    result, test = judge_python(sorted(set(tests)), folder) if tests else (SURVIVED, "")
    return "" if result == SURVIVED else f"{test} fails without any mutant: its mutants are not killed"


def main() -> None:
    """Plant the mutants that the arguments select."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave by an exception, which restores the file
    parser = argparse.ArgumentParser(description="Plant mutants and print which test kills each.")
    parser.add_argument("--area", action="append", help="only mutants of this area, may be repeated")
    parser.add_argument("--name", action="append", help="only mutants of this name, may be repeated")
    parser.add_argument("--tests", metavar="REVISION", help="run the tests of another revision")
    options = parser.parse_args()
    chosen = [each for each in read_mutants() if each.area in (options.area or [each.area])]
    chosen = [each for each in chosen if each.name in (options.name or [each.name])]
    if options.tests is not None:  # tests of that revision may have other names
        chosen = [replace(each, tests=tuple(test.partition("::")[0] for test in each.tests)) for each in chosen]
    folder = folder_of(options.tests)
    outcomes = list[Outcome]()
    try:
        for mutant in chosen:
            outcomes.append(outcome := judge(mutant, folder))
            print(*(str(each) for each in asdict(outcome).values()), sep="  ", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n", encoding="utf-8")
    finally:
        if any(mutant.in_build for mutant in chosen) and "TXPORT_CPP_BUILD" in os.environ:
            run(["cmake", "--build", os.environ["TXPORT_CPP_BUILD"]])
    fault = check_killers(outcomes, folder)
    counts = ", ".join(
        f"{sum(each.result == kind for each in outcomes)} {kind}" for kind in (KILLED, SURVIVED, SKIPPED)
    )
    print(f"{len(outcomes)} mutants: {counts}", fault, sep="\n")
    if fault or not chosen or any(each.result in (SURVIVED, INVALID) for each in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Runs what needs a GPU, step by step, and gathers what it finds: python tests/gpu/run.py DIRECTORY [OPTION...]

Each step is a process of its own with a limit and a log, and none stops the next. A step that has ended by itself is
not run again unless --step names it: the same command goes on where the time of the last one ran out. DIRECTORY/results
has report.md and all that was kept, and DIRECTORY/results.tgz is all of it. Results of several machines join where
their archives are unpacked into one directory: --minutes 0 then writes the report. The exit code is 1 if anything
failed.
"""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from page import findings, page, passed
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.engines.directories import directories, user_engines
from txport.runtime.errors import InputError, TxportError
from txport.runtime.files import make_directory, write_atomically
from txport.runtime.libraries import cuda_provider

ROOT = Path(__file__).resolve().parents[2]
# Maximum seconds of each step. Its tests are tests/gpu/test_STEP.py, except for `model`, `chain` and `patterns`.
LIMITS = {
    "environment": 90,
    "device": 60,
    "onnxruntime": 300,
    "patterns": 300,
    "tensorrt": 540,
    "figures": 300,
    "memory": 120,
    "cpp": 120,
    "model": 60,
    "chain": 600,
    "training": 240,
}
REHEARSAL_FACTOR = 20  # of these seconds, since a processor is slower and may be busy
SHORT = 30.0  # seconds before its end in which a step that fails has failed for want of time
COMMAND = "import sys; sys.argv[0] = 'tx-{0}'; from txport.training.entry import {0}; {0}()"
BENCH = "import sys; sys.argv[0] = 'tx-bench'; from txport.benchmarks.entry import bench; bench()"


def in_order(bundles: Path) -> list[Path]:
    """The bundle whose figures count, the largest in float16 without float32 islands, and the others by size.

    Raises:
        InputError: there are no bundles.
    """
    manifests = {path.parent: Manifest.load(path.parent) for path in bundles.glob("*/manifest.json")}
    if not manifests:
        raise InputError(f"{bundles} holds no bundles: give a directory of directories that tx-export wrote")

    def weight(bundle: Path) -> tuple[int, str]:
        return manifests[bundle].files[WEIGHTS].bytes, bundle.name

    plain = [b for b, m in manifests.items() if m.precision.type == "float16" and not m.precision.islands]
    first = max(plain or manifests, key=weight)
    return [first, *sorted(manifests.keys() - {first}, key=weight)]


def surroundings(programs: Path) -> dict[str, str]:
    """The variables by which the C++ tools find the libraries beside them, and those that pip has installed."""

    def installed(pattern: str) -> list[str]:
        return [str(path.absolute()) for place in sys.path for path in sorted(Path(place or ".").glob(pattern))]

    packages = [path for pattern in ("nvidia/*/lib", "tensorrt_libs", "tensorrt") for path in installed(pattern)]
    places = [*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *packages, str(programs / "lib")]
    found = {"TXPORT_CPP_BUILD": str(programs), "LD_LIBRARY_PATH": os.pathsep.join(places)}
    for library in installed("onnxruntime/capi/libonnxruntime.so.*")[:1]:
        found["TXPORT_ONNXRUNTIME"] = os.environ.get("TXPORT_ONNXRUNTIME", library)
    return found


def training_commands(scratch: Path, rehearsal: bool) -> Iterator[list[str]]:
    """tx-train of the demo in bf16-mixed, resumed once with a higher limit; in float32; tx-evaluate of the first."""
    if find_spec("torch") is None or find_spec("lightning") is None:
        return
    usable = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if not rehearsal and subprocess.run([sys.executable, "-c", usable]).returncode != 0:
        return
    device, small = ("gpu", "cuda"), list[str]()
    first, longer, short = (["--max-minutes", limit] for limit in ("0.5", "1", "0.4"))
    if rehearsal:
        device = "cpu", "cpu"
        small = [word for split in ("train=3000", "validation=50", "test=50") for word in ("--set", f"corpus.{split}")]
        first, longer, short = (["--max-steps", limit] for limit in ("20", "40", "10"))

    def train(precision: str, *more: str) -> list[str]:
        options = ["--recipe", "demo", "-o", str(scratch / precision), "--precision", precision, *small]
        return [sys.executable, "-c", COMMAND.format("train"), *options, "--accelerator", device[0], *more]

    yield train("bf16-mixed", *first, "--force")
    yield train("bf16-mixed", *longer, "--resume")
    yield train("32-true", *short, "--force")
    options = [str(scratch / "bf16-mixed"), "--recipe", "demo", "--lines", "50", "--device", device[1]]
    yield [sys.executable, "-c", COMMAND.format("evaluate"), *options]


def bench_commands(
    bundles: list[Path], results: Path, programs: Path | None, rehearsal: bool, only: str | None = None
) -> Iterator[list[str]]:
    """tx-bench of the first bundle: each lowering, TensorRT, C++ beside them; and of real text where there is some.

    Args:
        bundles: in order.
        results: the directory of reports.
        programs: the directory of the C++ tools.
        rehearsal: whether to measure on the CPU, briefly.
        only: one lowering instead of all.
    """
    first, device = bundles[0], "cpu" if rehearsal and cuda_provider() is None else "cuda"
    manifests = {bundle: Manifest.load(bundle) for bundle in bundles}
    if find_spec("rich") is None:  # which tx-bench needs
        return
    here = find_spec("onnxruntime") is not None and (device == "cpu" or cuda_provider() is not None)
    lowerings = manifests[first].lowerings if here else ()
    runs = [
        (f"{device}-{lowering}", ["--device", device, "--engine", "ort", "--lowering", lowering])
        for lowering in lowerings
        if only in (None, lowering)
    ]
    runs += [("trt", ["--engine", "trt"])] if directories(user_engines(manifests[first])) else []
    tools = ["--cpp", str(programs / "txport-bench")] if programs else []
    alike = [bundle for bundle in bundles if manifests[bundle].precision == manifests[first].precision]
    texts = [(bundle, runs[0]) for bundle in alike[::-1] if runs and manifests[bundle].tokenizer.kind != "none"]
    for name, options in runs:
        command = [str(first), *options, *tools, "--lines", "0"]
        yield [sys.executable, "-c", BENCH, *command, "-o", str(results / f"bench-{first.name}-{name}")]
    for bundle, (name, options) in texts[:1]:
        command = [str(bundle), *options, "--batch", "1"]
        yield [sys.executable, "-c", BENCH, *command, "-o", str(results / f"bench-{bundle.name}-text-{name}")]


class Run:
    """One run: what its steps are given, and where their findings go.

    Args:
        results: the directory of all that is found.
        bundles: a directory of bundles.
        programs: the directory of the C++ tools; None if they are not here.
        driver: the directory of a libcuda.so.1 in host memory, for a rehearsal; None for a GPU.
        minutes: that all steps together may take.
        lowering: the one whose figures are measured; None for all.
    """

    def __init__(
        self,
        results: Path,
        bundles: Path,
        programs: Path | None,
        driver: Path | None,
        minutes: float,
        lowering: str | None = None,
    ) -> None:
        self.lowering = lowering
        self.results, self.programs, self.rehearsal = results, programs, driver is not None
        self.bundles, self.end = in_order(bundles), time.time() + 60 * minutes
        self.file = results / f"findings-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.jsonl"
        self.environment = {
            **os.environ,
            **(surroundings(programs) if programs else {}),
            # For the plugin, which pytest imports before it reads where else to look.
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests/gpu"), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TXPORT_GPU_BUNDLES": os.pathsep.join(map(str, self.bundles)),
            "TXPORT_GPU_FINDINGS": str(self.file),
            "TXPORT_GPU_KEEP": str(results),
            "TXPORT_NEEDS_GPU": "1",
            **({"TXPORT_GPU_PATTERNS": str(ROOT / "patterns")} if (ROOT / "patterns").is_dir() else {}),
            "TXPORT_CACHE": str(results.resolve().parent / "cache"),
        }
        if driver is not None:
            paths = [str(driver), *filter(None, [self.environment.get("LD_LIBRARY_PATH")])]
            rehearsal = {"LD_LIBRARY_PATH": os.pathsep.join(paths), "TXPORT_TEST_CUDA": "eager"}
            self.environment |= {**rehearsal, "TXPORT_GPU_REHEARSAL": "1"}

    def step(self, name: str) -> None:
        """Run a step and note how it ended, unless no time is left; then it is not run yet."""
        longest = LIMITS[name] * (REHEARSAL_FACTOR if self.rehearsal else 1)
        start, limit = time.time(), min(self.end, time.time() + longest)
        log = self.results / f"{name}.log"
        log.unlink(missing_ok=True)
        outcome, reason = "skipped", "no library that it needs is here"
        for command in self._commands(name):
            if outcome == "skipped":
                outcome, reason = "passed", ""
            if time.time() >= limit:
                outcome, reason = "stopped", "no time was left for all of it: run it again with --step"
                break
            code = self._ended(command, log, limit)
            if code not in (0, 5) and outcome == "passed":  # 5: pytest has found no test
                last = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
                took = f"it took longer than {limit - start:.0f} s"
                outcome, reason = ("stopped", took) if code is None else ("failed", " ".join(last.split())[:300])
                reason = reason if name in ("figures", "training") or code != 1 else ""  # 1: its tests say why
        tests = [each for each in findings(self.results).values() if each.get("at", 0) >= start]
        if outcome == "passed" and tests and all(each["outcome"] == "skipped" for each in tests):
            outcome, reason = "skipped", tests[0]["reason"]
        if outcome == "failed" and time.time() > limit - SHORT:
            outcome, reason = "stopped", "its time was over"
        seconds = round(time.time() - start, 1)
        with self.file.open("a") as file:
            file.write(json.dumps({"test": name, "outcome": outcome, "reason": reason, "seconds": seconds}) + "\n")
        print(f"{name} ... {outcome} in {seconds:.0f} s{reason and ': '}{reason}", flush=True)

    def _commands(self, name: str) -> Iterator[list[str]]:
        if name == "figures":
            for command in bench_commands(self.bundles, self.results, self.programs, self.rehearsal, self.lowering):
                short = ["--calls", "1", "--batch", "1", "--no-roofline"] if self.rehearsal else ["--seconds", "2.5"]
                yield [*command, "--quick", "--no-plots", *short]
            return
        if name == "training":
            yield from training_commands(self.results.parent / "training", self.rehearsal)
            return
        if name == "model" and find_spec("torch") is None:
            return
        places = {name: f"tests/gpu/{name}/test_{name}.py" for name in ("chain", "patterns")}
        places["model"] = "tests/models/test_gpu.py"
        file = ROOT / places.get(name, f"tests/gpu/test_{name}.py")
        options = ["-m", "gpu", "-p", "gpu_findings", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
        yield [sys.executable, "-m", "pytest", *options, str(file)]

    def _ended(self, command: list[str], log: Path, limit: float) -> int | None:
        """The exit code of a process group of its own; None if it was killed because its time was over."""
        environment = {**self.environment, "TXPORT_GPU_END": str(limit)}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
            )
            try:
                return process.wait(max(0.0, limit - time.time()))
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bundles", type=Path, required=True, help="A directory of bundles to run.")
    parser.add_argument("--programs", type=Path, help="The directory of txport-translate and txport-bench.")
    parser.add_argument("--step", action="append", choices=list(LIMITS), help="Only this; may be repeated.")
    parser.add_argument("--lowering", help="Figures of this lowering only.")
    parser.add_argument("--minutes", type=float, default=20.0, help="Most minutes of all steps.  [default: 20]")
    parser.add_argument("--driver", type=Path, help="Rehearse: the directory of a libcuda.so.1 in host memory.")
    options = parser.parse_args()
    results = options.directory / "results"
    try:
        make_directory(results)
        lock = (options.directory / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run into it ends first: both would write the same logs
        run = Run(results, options.bundles, options.programs, options.driver, options.minutes, options.lowering)
        ended = findings(results)
        left = [name for name in LIMITS if name not in ended]
        left += [name for name in LIMITS if name in ended and ended[name]["outcome"] == "stopped"]
        for name in options.step or left:
            if time.time() < run.end:
                run.step(name)
        write_atomically(results / "report.md", page(results, list(LIMITS), run.rehearsal).encode())
        with tarfile.open(options.directory / "results.tgz", "w:gz") as archive:
            archive.add(results, "results")
    except TxportError as error:
        print(f"run.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"written: {results / 'report.md'}")
    sys.exit(not passed(findings(results)))


if __name__ == "__main__":
    main()

"""The chain of kernels (tests/gpu/chain) beside ONNX Runtime: is it correct, and fast enough to be built into txport?

In a rehearsal its kernels are emulated: ids and logits mean something, times do not.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gpu_engines import COMPUTES, Rows, on_onnxruntime
from txport.runtime.bundle.interface import cross_names
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import padded
from txport.runtime.errors import EngineError
from txport.runtime.golden import Case, load_golden
from txport.runtime.text.affixes import affixes

pytestmark = pytest.mark.gpu
chain_gpu = pytest.importorskip("chain_gpu", reason="needs cuda-python: pip install 'txport[trt]'")

from chain_bundle import cache_of, model_of_bundle  # noqa: E402
from chain_plan import Chain  # noqa: E402
from small_models import recorded  # noqa: E402

BATCHES = (1, 8, 32)
POLL = 4  # steps of a captured graph
REHEARSED = 6  # tokens of a sentence in a rehearsal
LARGE = 1 << 20  # numbers of a table: larger models take minutes in a rehearsal


class Beside:
    """The chain and ONNX Runtime over one device, with the same encoder output.

    Args:
        bundle: in float16.
        cases: a golden case for each row.
        logits: whether both compute all logits.
    """

    def __init__(self, bundle: Path, cases: list[Case], *, logits: bool = False) -> None:
        try:
            model = model_of_bundle(bundle)
        except ValueError as reason:
            pytest.skip(str(reason))
        if chain_gpu.is_rehearsal() and model.table.size > LARGE:
            pytest.skip("this model is too large to be emulated")
        self.rows = len(cases)
        self.logits = logits
        self.engine = on_onnxruntime(bundle)
        self.tokens = self.engine.tokens
        self.ids, self.lengths = padded([case.source_ids for case in cases], self.tokens.pad)
        self.device = self.engine.device
        self.cache = cache_of(bundle)
        self.encoded = self.engine.encode(self.ids, self.lengths)
        at = self.encoded.sources[0].tensors()
        names = cross_names(model.layers)
        self.chain = Chain(
            model,
            chain_gpu.GpuMemory(self.device),
            rows=self.rows,
            cache=self.cache,
            source=self.encoded.width,
            blocks=self.device.gpu.multiprocessors,
            cross=[(at[key], at[value]) for key, value in zip(names[0::2], names[1::2], strict=True)],
            logits=logits,
        )
        self.chain.place_lengths(self.lengths)
        try:
            self.kernels = chain_gpu.Kernels(self.device, self.chain.constants)
        except RuntimeError as reason:
            pytest.skip(str(reason))
        self.kernels.enqueue(self.chain.launches)  # finds the functions, before any capture
        self.device.synchronize()

    def start(self, limits: np.ndarray) -> None:
        """Place the beginnings of the sentences in the chain."""
        self.chain.place_rows(np.full(self.rows, self.tokens.bos), np.zeros(self.rows), limits)

    def state(self, limits: np.ndarray) -> object:
        """ONNX Runtime's state with the same sentences."""
        state = self.engine.allocate(self.rows, self.ids.shape[1], self.cache, logits=self.logits)
        encoded = self.engine.encode(self.ids, self.lengths)
        state.place(range(self.rows), encoded, range(self.rows), limits.tolist())
        return state

    def replay(self, programmatic: bool) -> object:
        """A captured graph of some steps."""

        def enqueue() -> None:
            for _ in range(POLL):
                self.kernels.enqueue(self.chain.launches, programmatic=programmatic)

        return self.device.capture(enqueue)


def golden_cases(bundle: Path, rows: int) -> list[Case]:
    """Golden cases, repeated if there are fewer than rows."""
    cases = load_golden(bundle).cases
    if affixes(Manifest.load(bundle).tokenizer).target_prefix:
        pytest.skip("needs a bundle whose answers begin with no prefix")
    return [cases[number % len(cases)] for number in range(rows)]


@pytest.mark.parametrize("rows", BATCHES)
def test_golden_cases(plain: Path, rows: int) -> None:
    """Rows that have ended change no more."""
    cases = golden_cases(plain, rows)
    beside = Beside(plain, cases)
    length = REHEARSED if chain_gpu.is_rehearsal() else beside.cache
    expected = [list(case.target_ids[:length]) for case in cases]
    beside.start(np.array([len(ids) for ids in expected]))
    for _ in range(max(map(len, expected))):
        beside.kernels.enqueue(beside.chain.launches)
    history, last = beside.chain.history(), beside.chain.state("positions")
    assert beside.chain.error() == 0 and beside.chain.state("finished").all()
    found = [history[row, : last[row] + 1].tolist() for row in range(rows)]
    if COMPUTES:
        assert found == expected


def test_logits_of_1000_steps(plain: Path, record_property: Rows) -> None:
    """The chain reads the tokens that ONNX Runtime chooses; steps of finished rows do not count."""
    cases = golden_cases(plain, 8)
    beside = Beside(plain, cases, logits=True)
    wanted = 24 if chain_gpu.is_rehearsal() else 1000
    limits = np.full(8, beside.cache)
    errors: list[float] = []
    same = 0
    while len(errors) < wanted:
        state = beside.state(limits)
        beside.start(limits)
        running = np.ones(8, bool)
        while running.any() and len(errors) < wanted and beside.chain.state("positions").max() < beside.cache - 1:
            positions = beside.chain.state("positions")
            beside.kernels.enqueue(beside.chain.launches)
            state.step()
            output = state.read()
            theirs, ours = state.logits()[running], beside.chain.logits()[running]
            errors += (np.abs(theirs - ours).max(1) / np.abs(theirs).max(1)).tolist()
            same += int((theirs.argmax(1) == ours.argmax(1)).sum())
            finished = output.finished.astype(np.int32)
            after = np.where(finished, positions, positions + 1)
            beside.chain.place_rows(output.token_ids[-1], after, limits, finished)
            running = ~output.finished
        if not COMPUTES:
            return
    row = {"bundle": plain.name, "steps": len(errors), "largest": max(errors), "mean": float(np.mean(errors))}
    record_property("the chain's logits, relative to ONNX Runtime's", {**row, "same token": same})
    assert max(errors) < 2e-2 and same >= 0.99 * len(errors)


def test_time_of_a_step(measured: Path, record_property: Rows) -> None:
    """By the stop rule of `chain_gpu.verdict`. Both loops wait for the host every few steps.

    Programmatic launches begin before the previous kernel has ended. They must generate the same tokens.
    """
    rehearsal = chain_gpu.is_rehearsal()
    steps, repeats = (POLL, 1) if rehearsal else (64, 9)
    chain_times, other_times = {}, {}
    for rows in BATCHES[:1] if rehearsal else BATCHES:
        beside = Beside(measured, golden_cases(measured, rows))
        limits = np.full(rows, beside.cache)
        times = {}
        tokens: dict[str, list[list[int]]] = {}  # after each captured graph
        for name, programmatic in (("chain", False), ("chain, programmatic", True)):
            try:
                replay = beside.replay(programmatic)
            except EngineError as error:  # a driver before CUDA 12.3
                times[name] = str(error)
                continue

            def run(name: str = name, replay: object = replay, beside: Beside = beside, tokens: dict = tokens) -> None:
                tokens[name] = []
                for _ in range(steps // POLL):
                    replay()
                    tokens[name].append(beside.chain.state("tokens").tolist())

            times[name] = chain_gpu.microseconds(lambda limits=limits, b=beside: b.start(limits), run, steps, repeats)
        assert all(made == tokens["chain"] for made in tokens.values()), tokens
        state = beside.state(limits)

        def run_other(state: object = state) -> None:
            for _ in range(steps // POLL):
                state.step(POLL)
                state.read()

        def place(state: object = state, beside: Beside = beside, limits: np.ndarray = limits) -> None:
            encoded = beside.engine.encode(beside.ids, beside.lengths)
            state.place(range(beside.rows), encoded, range(beside.rows), limits.tolist())
            beside.device.synchronize()

        other_times[rows] = chain_gpu.microseconds(place, run_other, steps, repeats)
        chain_times[rows] = min(value for value in times.values() if not isinstance(value, str))
        figures = {name: value if isinstance(value, str) else round(value, 1) for name, value in times.items()}
        row = {"bundle": measured.name, "batch": rows, **figures, "ONNX Runtime": round(other_times[rows], 1)}
        record_property("the chain of kernels, microseconds of a step", row)
    words = "a rehearsal: no verdict" if rehearsal else chain_gpu.verdict(chain_times, other_times)
    record_property("the chain of kernels, verdict", {"verdict": words})


@pytest.mark.parametrize("tool", ["none", "memcheck", "racecheck", "initcheck", "synccheck"])
def test_small_models_under_compute_sanitizer(tool: str) -> None:
    """Their logits are what the emulator finds."""
    folders = [str(path) for path in Path("/usr/local").glob("cuda*/bin")]
    program = shutil.which("compute-sanitizer") or next(
        (found for folder in folders if (found := shutil.which("compute-sanitizer", path=folder))), None
    )
    if tool != "none" and program is None:
        pytest.skip("needs compute-sanitizer, of the CUDA toolkit")
    # cuda-bindings asks the driver for functions of newer versions, which fails without being an error.
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    prefix = [str(program), "--tool", tool, *quiet, "--error-exitcode", "9"] if tool != "none" else []
    command = [*prefix, sys.executable, str(Path(chain_gpu.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if "libnvrtc" in done.stderr:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    assert done.returncode == 0, done.stdout + done.stderr
    sums = next(line for line in done.stdout.splitlines() if line.startswith("[["))
    np.testing.assert_allclose(json.loads(sums), recorded(), rtol=1e-4)

"""Two processes on this machine, by gloo: launched by Lightning, by torchrun, by Ray Train, and as SLURM would."""

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import changed, weights
from txport.training.loop import train
from txport.training.recipe import Recipe, read
from warm import SCRIPTS, warm_commands

SCRIPT = SCRIPTS / "tx-train"
Training = subprocess.Popen[str]
# An epoch has 18 batches, an even number: two devices share those that one device accumulates for a step. Tokens of
# validation are 47, an odd number.
VALUES = (
    "corpus.kind=names", "corpus.train=300", "corpus.validation=32", "corpus.test=4", "tokenizer.vocabulary=200",
    "model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=32", "model.ffn=64", "model.max_positions=64",
    "training.max_length=64", "training.batch_tokens=256", "training.validation_sentences=4",
    "training.validate_every=4", "training.max_steps=8", "training.keep=last",
)  # fmt: skip
TWO = ('training.devices="2"', "training.accelerator=cpu", "training.strategy=ddp")


def recipe(*values: str) -> Recipe:
    return read("tiny", [*VALUES, *values])


def words(output: Path, *values: str) -> list[str]:
    sets = [word for value in (*VALUES, *values) for word in ("--set", value)]
    return ["--recipe", "tiny", "-o", str(output), *sets]


def environment(**values: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PYTEST"))}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in values.items()}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def losses(output: Path) -> list[float]:
    """Of the validations."""
    file = sorted(Path(f"{output}.run").glob("logs/csv/version_*/metrics.csv"))[-1]
    return [float(row["validation/loss"]) for row in csv.DictReader(file.open()) if row["validation/loss"]]


def by_lightning(output: Path, *values: str) -> "subprocess.CompletedProcess[str]":
    line = [warm_commands() / "python", SCRIPT, *words(output, *TWO, *values)]
    return subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=500)


def of_torchrun(rank: int) -> dict[str, object]:
    job = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    return {**job, "RANK": rank, "LOCAL_RANK": rank}


@contextmanager
def ranks(
    output: Path,
    *values: str,
    resume: bool = False,
    corpora: tuple[str, ...] = ("", ""),
    variables: Callable[[int], dict[str, object]] = of_torchrun,
) -> Iterator[list[Training]]:
    """Two processes with the environment that a launcher gives them; they are killed at the end if they still run."""
    meeting, found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}, []
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        for rank, corpus in enumerate(corpora):
            line = [*words(output, *TWO, *values), *corpus.split(), *(["--resume"] if resume else [])]
            command = [warm_commands() / "tx-train", *line]
            found.append(subprocess.Popen(command, env=environment(**meeting, **variables(rank)), **pipes))
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def ended(processes: list[Training], *codes: int) -> list[tuple[str, str]]:
    """What each has said on standard output and on standard error."""
    ends = [process.communicate(timeout=500) for process in processes]
    assert [process.returncode for process in processes] == list(codes), ends
    return ends


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps of two processes that Lightning starts, with dropout."""
    output = tmp_path_factory.mktemp("pair") / "checkpoint"
    done = by_lightning(output, "model.dropout=0.1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("8 steps in") == 1, "only the first process reports"
    return output


def test_two_processes_make_the_steps_of_one_of_a_model_that_copies(tmp_path: Path) -> None:
    """The same batches, shared by two devices or accumulated by one: the same losses and weights, but for rounding."""
    values = ("model.copy_heads=[[0, 1]]", "training.label_smoothing=0.1")
    with ranks(tmp_path / "two", *values) as both:
        ended(both, 0, 0)
    train(recipe("training.accumulate=2", "training.validate_every=4", *values), tmp_path / "one", Path())
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=2e-3, atol=2e-4, msg=name)


def test_after_the_death_of_one_the_run_goes_on_bit_by_bit(pair: Path, tmp_path: Path) -> None:
    """SIGKILL, as of a machine that fails, after the first validation; the other process ends by itself."""
    output = tmp_path / "checkpoint"
    with ranks(output, "model.dropout=0.1", "training.max_steps=12") as (first, second):
        while "step 4, " not in (said := first.stderr.readline()):
            assert said, "it ended by itself"
        while not (state := Path(f"{output}.run", "state", "last.ckpt")).exists():
            assert first.poll() is None
            time.sleep(0.02)
        second.send_signal(signal.SIGKILL)
        _, errors = first.communicate(timeout=500)
    saved = torch.load(state, weights_only=True)["global_step"]
    assert 4 <= saved < 8
    assert first.returncode == 2 and "Traceback" not in errors, errors
    assert re.search(r"another process of this run has ended.*--resume", errors.splitlines()[-1]), errors
    assert not output.exists()
    with ranks(output, "model.dropout=0.1", "training.max_steps=8", resume=True) as both:
        ended(both, 0, 0)
    assert not changed(pair, output)


def test_sigterm_to_all_saves_the_state(tmp_path: Path) -> None:
    """As SLURM sends it before the time of a job is over."""
    with ranks(tmp_path / "checkpoint", "training.max_steps=100000") as both:
        while "step 4, " not in (said := both[0].stderr.readline()):
            assert said, "it ended by itself"
        for process in both:
            process.send_signal(signal.SIGTERM)
        ends = ended(both, 143, 143)
    step = re.search(r"the state of step (\d+) is saved: continue with --resume$", ends[0][1])
    state = torch.load(tmp_path / "checkpoint.run" / "state" / "last.ckpt", weights_only=True)
    assert step is not None and state["global_step"] == int(step[1]) >= 4


def test_different_corpora_are_refused_with_one_sentence(tmp_path: Path) -> None:
    with ranks(tmp_path / "checkpoint", corpora=("", "--set corpus.seed=2")) as both:
        ends = ended(both, 2, 2)
    said = "".join(errors for _, errors in ends)
    assert "Traceback" not in said
    sentence = "process 1 of this run has another corpus than process 0 (300 training pairs as well, but others)"
    assert said.count(sentence) == 1 and said.count("give all machines the same files") == 1
    assert not (tmp_path / "checkpoint").exists()


def test_shards_make_the_steps_of_whole_weights(pair: Path, tmp_path: Path) -> None:
    """FSDP, in two parts, the second by another launcher: DDP's losses and weights, but for the order of sums."""
    done = by_lightning(tmp_path / "run", "training.strategy=fsdp", "model.dropout=0.1", "training.max_steps=4")
    assert done.returncode == 0, done.stderr
    with ranks(tmp_path / "run", "training.strategy=fsdp", "model.dropout=0.1", resume=True) as both:
        ended(both, 0, 0)
    assert losses(tmp_path / "run") == pytest.approx(losses(pair)[1:], rel=1e-4)
    mine, theirs = weights(tmp_path / "run"), weights(pair)
    for name, value in theirs.items():
        if not name.endswith("key.bias"):  # its gradient is zero: Adam makes steps of what rounding leaves
            torch.testing.assert_close(mine[name], value, rtol=2e-3, atol=2e-4, msg=name)


@pytest.mark.parametrize("then", [1, 2])
def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path, then: int) -> None:
    """Six steps of an epoch of ten, then as many by one process that accumulates, or by two after one that did.

    The weights go where they would have gone. In a step of Adam rounding may turn those whose gradient is almost none.
    """

    def two(output: Path, steps: int, resume: bool) -> None:
        with ranks(output, f"training.max_steps={steps}", resume=resume) as both:
            ended(both, 0, 0)

    def one(output: Path, steps: int, resume: bool) -> None:
        train(recipe("training.accumulate=2", f"training.max_steps={steps}"), output, Path(), resume=resume)

    first, second = (one, two) if then == 2 else (two, one)
    first(tmp_path / "other", 6, False)
    shutil.copytree(tmp_path / "other", tmp_path / "same")
    shutil.copytree(tmp_path / "other.run", tmp_path / "same.run")
    begun = weights(tmp_path / "other")
    second(tmp_path / "other", 12, True)
    first(tmp_path / "same", 12, True)
    other, same = weights(tmp_path / "other"), weights(tmp_path / "same")

    def distance(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
        return float(sum((left[name] - right[name]).double().pow(2).sum() for name in left)) ** 0.5

    assert distance(other, same) < 0.05 * distance(begun, same)


def test_torchrun(pair: Path, tmp_path: Path) -> None:
    """As the README says it for two machines, which are both this one here, with one device each."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    launch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting, str(SCRIPT)]
    values = ('training.devices="1"', "training.nodes=2", "training.accelerator=cpu", "training.strategy=ddp")
    line = [warm_commands() / "python", *launch, *words(tmp_path / "run", *values, "model.dropout=0.1")]
    agents = [
        subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [agent.communicate(timeout=500) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    assert sum(output.count("8 steps in") for output, _ in ends) == 1
    assert not changed(pair, tmp_path / "run")


def test_ray_train(pair: Path, tmp_path: Path) -> None:
    """The README's code, with other values for where it runs."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'txport[ray]'")
    page = Path(__file__).parents[3] / "training" / "README.md"
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "ray.train" in block
    )
    values = [*VALUES, "model.dropout=0.1", "training.accelerator=cpu"]
    for old, new in {
        "/shared/mine.toml": "tiny", "/shared/": f"{tmp_path}/", "NODES, DEVICES = 2, 8": "NODES, DEVICES = 1, 2",
        "VALUES = [": f"VALUES = [*{values!r}, ", ", use_gpu=True": "",
    }.items():  # fmt: skip
        assert old in code
        code = code.replace(old, new)
    code = f"import ray\nray.init(num_cpus=2, include_dashboard=False)\n{code}"
    line = [sys.executable, "-c", code]
    # Workers import PyTorch, which takes Ray's 60 s and more on a busy machine.
    waits = {"RAY_raylet_start_wait_time_s": 400, "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": 400}
    variables = environment(RAY_AUTH_MODE="disabled", **waits)
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert not changed(pair, tmp_path / "mine")


def test_two_tasks_of_slurm_make_the_steps_of_one_process(tmp_path: Path) -> None:
    """On one node, with the variables that srun sets for each.

    The same batches, shared by two devices or accumulated by one: the same losses and weights, but for rounding.
    """
    job = {
        "SLURM_JOB_ID": 4711, "SLURM_JOB_NAME": "txport", "SLURM_NTASKS": 2, "SLURM_NTASKS_PER_NODE": 2,
        "SLURM_NNODES": 1, "SLURM_NODELIST": "127.0.0.1", "SLURM_NODEID": 0,
    }  # fmt: skip
    with ranks(tmp_path / "run", variables=lambda rank: {**job, "SLURM_PROCID": rank, "SLURM_LOCALID": rank}) as both:
        ends = ended(both, 0, 0)
    assert [output.count("8 steps in") for output, _ in ends] == [1, 0]
    train(recipe("training.accumulate=2"), tmp_path / "one", Path())
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "run")
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=2e-3, atol=2e-4, msg=name)

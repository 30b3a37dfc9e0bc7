"""Options that have no effect are refused, by every command that has such."""

from pathlib import Path

import pytest
from commands import run
from toy import BUNDLE
from txport.benchmarks import entry as benchmarks
from txport.exporter import entry as exporter
from txport.models import entry as models
from txport.runtime import entry as runtime
from txport.training import entry as training

CHECKPOINT = Path(__file__).parent / "data" / "checkpoints" / "tiny"
TRAIN = (training, "tx-train", "--recipe", "tiny", "-o", "new")
BENCH = (benchmarks, "tx-bench", BUNDLE, "-o", "bench")
TABLE = (training, "tx-distill", BUNDLE, "--source", "text", "-o", "pairs.tsv")
CASES = [
    ((exporter, "tx-export", "checkpoint", "-o", "new", "--no-verify"), "--singles=3", "with --no-verify"),
    ((exporter, "tx-export", "checkpoint", "-o", "new", "--no-verify"), "--verify-minutes=3", "with --no-verify"),
    ((exporter, "tx-verify", BUNDLE), "--singles=3", "without a CHECKPOINT"),
    ((training, "tx-evaluate", BUNDLE), "--bleu-order=3", "without --show"),
    ((training, "tx-evaluate", BUNDLE), "--data=.", "without --recipe"),
    (
        (training, "tx-evaluate", BUNDLE, "--recipe", "tiny"),
        "--data=.",
        "with a corpus of kind builtin, which has no files",
    ),
    ((training, "tx-shortlist", BUNDLE, "--no-check"), "--check-source=text", "with --no-check"),
    ((training, "tx-shortlist", BUNDLE, "--no-check"), "--max-loss=3", "with --no-check"),
    ((models, "tx-import", "model", "-o", "new", "--no-tokenizer"), "--vocabulary=.", "with --no-tokenizer"),
    (
        (training, "tx-train", "--recipe", "tiny", "-o", "new"),
        "--data=.",
        "with a corpus of kind builtin, which has no files",
    ),
    (
        (training, "tx-train", "--recipe", "tiny", "-o", "new", "--from", CHECKPOINT),
        "--vocabulary=99",
        "with the tokenizer of --from",
    ),
    (BENCH, "--peer-seconds=3", "without --peers or --peer"),
    (BENCH, "--peer-python=ctranslate2=python", "without --peers or --peer"),
    ((*BENCH, "--peer=pytorch"), "--compute-types=int8", "without --peer ctranslate2"),
    (TABLE, "--shard=1/2", "without --to jsonl or --to parquet"),
    (TABLE, "--part-rows=3", "without --to jsonl or --to parquet"),
    ((runtime, "tx-translate-corpus", BUNDLE, "text", "-o", "parts", "--check"), "--resume", "with --check"),
]


@pytest.mark.parametrize(("command", "option", "reason"), CASES, ids=[f"{case[0][1]} {case[1]}" for case in CASES])
def test_an_option_without_effect(
    command: tuple[object, ...], option: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("the cat\n")
    Path("model").mkdir()
    entry, name, *arguments = command
    done = run(entry, name, *arguments, option)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"{name}: {option.split('=')[0]} has no effect {reason}: leave it out\n"


def test_texts_need_a_checkpoint(tmp_path: Path) -> None:
    for option in ("--text", "--references", "--ids", "--reference-ids"):
        done = run(exporter, "tx-verify", BUNDLE, option, tmp_path)
        assert done.returncode == 2 and f"{option} needs a CHECKPOINT" in done.stderr

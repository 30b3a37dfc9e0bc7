"""Checkpoints: what is saved is loaded, nothing is unpickled, a damaged or half-written one is never used."""

import dataclasses
import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from txport.models.checkpoint import load_checkpoint, save_checkpoint
from txport.models.config import Config
from txport.models.description import write_description
from txport.models.transformer import Transformer
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription, TokenizerFiles, ids_only, plain
from txport.runtime.errors import CheckpointError, InputError

MakeModel = Callable[..., Transformer]
SENTENCES = ["on 3/14/2025 it cost $12.50", "  spaces at both ends  ", "", "Füße 🚀 \u2028 one line still"]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A tokenizer directory; its content does not matter to a checkpoint."""
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    (directory / "shared.model").write_bytes(b"not looked at")
    return directory


@pytest.fixture
def saved(tmp_path: Path, make_model: MakeModel, tokenizer: Path) -> Path:
    directory = tmp_path / "checkpoint"
    save_checkpoint(directory, make_model(), tokenizer, SENTENCES, {"steps": 3})
    return directory


def names_beside(directory: Path) -> set[str]:
    return {path.name for path in directory.parent.iterdir()}


# --- what is saved is what is loaded ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre", "positions": "learned", "embedding_norm": True},
        {"share_embeddings": False, "tie_projection": False, "projection_bias": True, "target_vocabulary": 48},
    ],
)
@torch.no_grad()
def test_round_trip(tmp_path: Path, make_model: MakeModel, tokenizer: Path, options: dict[str, Any]) -> None:
    model = make_model(**options)
    save_checkpoint(tmp_path / "a" / "checkpoint", model, tokenizer, SENTENCES, {"steps": 3})
    loaded = load_checkpoint(tmp_path / "a" / "checkpoint")
    source, lengths, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([4]), torch.tensor([[2, 9, 9]])
    assert torch.equal(loaded.model(source, lengths, target), model(source, lengths, target))
    assert loaded.config == model.config
    assert loaded.sentences == SENTENCES
    assert loaded.tokenizer == plain("tokenizer/shared.model", "tokenizer/shared.model", 3)
    assert not loaded.model.training
    assert json.loads((tmp_path / "a/checkpoint/training.json").read_text()) == {"steps": 3}


def test_a_tied_tensor_is_stored_once_and_loaded_tied(saved: Path) -> None:
    stored = load_file(saved / "model.safetensors")
    assert sum(tuple(tensor.shape) == (40, 32) for tensor in stored.values()) == 1
    model = load_checkpoint(saved).model
    assert model.projection.weight is model.source_embedding.tokens.weight is model.target_embedding.tokens.weight


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_loaded_as_float32(tmp_path: Path, make_model: MakeModel, dtype: torch.dtype) -> None:
    model = make_model().to(dtype)
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    loaded = load_checkpoint(tmp_path / "checkpoint")
    for parameter, original in zip(loaded.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, original.float()) and parameter.dtype == torch.float32
    assert loaded.tokenizer == ids_only(3) and loaded.sentences == []


def test_two_tokenizers(tmp_path: Path, make_model: MakeModel, tokenizer: Path) -> None:
    (tokenizer / "shared.model").rename(tokenizer / "source.model")
    (tokenizer / "target.model").write_bytes(b"another")
    save_checkpoint(tmp_path / "checkpoint", make_model(), tokenizer, [], {})
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.tokenizer == plain("tokenizer/source.model", "tokenizer/target.model", 3)


def test_a_last_sentence_without_line_break_counts(saved: Path) -> None:
    (saved / "sentences.txt").write_text("one\ntwo", encoding="utf-8")
    assert load_checkpoint(saved).sentences == ["one", "two"]


# --- nothing is unpickled --------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.trace, "was run")


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_pickle_under_the_weights_name_is_refused_and_not_run(saved: Path, tmp_path: Path, by_torch: bool) -> None:
    weights, trace = saved / "model.safetensors", tmp_path / "trace"
    if by_torch:
        torch.save({"source_embedding.tokens.weight": Hostile(trace)}, weights)
    else:
        weights.write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        load_checkpoint(saved)
    assert not trace.exists()
    if not by_torch:
        pickle.loads(weights.read_bytes())
        assert trace.exists(), "the pickle of this test is not hostile"


# --- damaged checkpoints ---------------------------------------------------------------------------------------------


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


BIAS = "decoder.1.feed_forward.outer.bias"
DAMAGE: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (lambda t: t.pop(BIAS), f"lacks {BIAS}"),
    "extra": (lambda t: t.update(surprise=torch.zeros(3)), "has surprise, which"),
    "misshapen": (lambda t: t.update({BIAS: torch.zeros(31)}), rf"{BIAS} has shape \(31,\).*\(32,\)"),
    "transposed": (
        lambda t: t.update({"encoder.0.feed_forward.inner.weight": torch.zeros(32, 48)}),
        r"inner\.weight has shape \(32, 48\).*\(48, 32\)",
    ),
    "integer": (lambda t: t.update({BIAS: torch.zeros(32, dtype=torch.int8)}), f"{BIAS} has dtype torch.int8"),
    "nan": (lambda t: t[BIAS].__setitem__(7, torch.nan), f"{BIAS} holds NaN or infinity"),
    "infinite": (lambda t: t[BIAS].__setitem__(0, -torch.inf), f"{BIAS} holds NaN or infinity"),
    "empty": (lambda t: t.clear(), r"lacks .* and \d\d more"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_wrong_tensors_are_refused_by_name(saved: Path, kind: str) -> None:
    change, message = DAMAGE[kind]
    change_tensors(saved, change)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors.*{message}"):
        load_checkpoint(saved)


@pytest.mark.parametrize("keep", [0, 4, 300, -1])
def test_a_truncated_weights_file_is_refused(saved: Path, keep: int) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=rf"{name} is missing"):
        load_checkpoint(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "sentences.txt"])
def test_a_directory_in_place_of_a_file_is_refused(saved: Path, name: str) -> None:
    (saved / name).unlink()
    (saved / name).mkdir()
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(saved)


def test_a_tokenizer_directory_without_models_is_refused(saved: Path) -> None:
    (saved / "tokenizer" / "shared.model").rename(saved / "tokenizer" / "source.model")
    with pytest.raises(CheckpointError, match="neither shared.model nor both"):
        load_checkpoint(saved)


def test_sentences_that_are_not_utf8_are_refused(saved: Path) -> None:
    (saved / "sentences.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(CheckpointError, match=r"sentences\.txt, line 1 is not UTF-8"):
        load_checkpoint(saved)


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_no_checkpoint_at_all(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="nowhere does not exist|file is not a checkpoint directory"):
        load_checkpoint(tmp_path / place)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"[]", "must hold a JSON object, not an array"),
        (b"{}", "format_version None"),
        (b'{"format_version": "1"}', "format_version '1'"),
        (b'{"format_version": true}', "format_version True"),
        (b'{"format_version": 0}', "format_version 0"),
        (
            b'{"format_version": 2}',
            "format_version 2, but this txport reads 1: give a whole checkpoint of this version",
        ),
        (b'{"format_version": 1}', "lacks the field 'config'"),
        (b'{"format_version": 1, "config": {}}', "config lacks the field 'source_vocabulary'"),
    ],
)
def test_a_config_file_that_cannot_be_read(saved: Path, content: bytes, message: str) -> None:
    (saved / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"config\.json.*{message}"):
        load_checkpoint(saved)


@pytest.mark.parametrize("field", ["d_model", "ffn", "source_vocabulary", "max_positions", "encoder_layers"])
def test_a_config_of_absurd_size_is_refused_before_memory_is_asked_for(
    tmp_path: Path, make_model: MakeModel, field: str
) -> None:
    """The tensors are compared with the config first; a model of terabytes is never built."""
    model = make_model(share_embeddings=False, tie_projection=False, positions="learned")
    save_checkpoint(tmp_path / "checkpoint", model, None, [], {})
    size = {"encoder_layers": 60, "max_positions": 2**17}.get(field, 2**24)
    absurd: Config = dataclasses.replace(model.config, **{field: size})
    document = {"format_version": 1, "config": absurd.to_json()}
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"its config\.json needs"):
        load_checkpoint(tmp_path / "checkpoint")


# --- a tokenizer that describes itself ---------------------------------------------------------------------------

FILES = TokenizerFiles("tokenizer/shared.model", None)
DESCRIBED = TokenizerDescription("sentencepiece", FILES, FILES, (5,), (3, 6), (7,), None)


def test_a_described_tokenizer(tmp_path: Path, make_model: MakeModel, tokenizer: Path) -> None:
    write_description(tokenizer, DESCRIBED)
    save_checkpoint(tmp_path / "checkpoint", make_model(), tokenizer, [], {})
    assert load_checkpoint(tmp_path / "checkpoint").tokenizer == DESCRIBED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": TokenizerFiles("../x.model", None)}, "not listed"),
        ({"source_prefix": (10**6,)}, "outside the source vocabulary"),
        ({"kind": "none"}, "must be null for the kinds 'none' and 'bytes'"),
        ({"kind": "words"}, "not one of"),
    ],
)
def test_descriptions_that_cannot_be(
    tmp_path: Path, make_model: MakeModel, tokenizer: Path, change: dict[str, Any], words: str
) -> None:
    write_description(tokenizer, dataclasses.replace(DESCRIBED, **change))
    save_checkpoint(tmp_path / "checkpoint", make_model(), tokenizer, [], {})
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(tmp_path / "checkpoint")
    assert "description.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format_version": 2}', '{"format_version": 1}', '{"format_version": true}']
)
def test_damaged_descriptions(tmp_path: Path, make_model: MakeModel, tokenizer: Path, text: str) -> None:
    (tokenizer / "description.json").write_text(text)
    save_checkpoint(tmp_path / "checkpoint", make_model(), tokenizer, [], {})
    with pytest.raises(CheckpointError, match="description.json"):
        load_checkpoint(tmp_path / "checkpoint")


# --- nothing half-written is ever visible ----------------------------------------------------------------------------


def test_an_existing_directory_is_not_touched(saved: Path, make_model: MakeModel) -> None:
    before = {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="exists"):
        save_checkpoint(saved, make_model(seed=1), None, [], {})
    assert {path: path.read_bytes() for path in saved.rglob("*") if path.is_file()} == before


def test_replacing_leaves_only_the_new_one(saved: Path, make_model: MakeModel) -> None:
    save_checkpoint(saved, make_model(seed=1), None, ["new"], {}, replace=True)
    assert load_checkpoint(saved).sentences == ["new"]
    assert not (saved / "tokenizer").exists()
    assert names_beside(saved) == {"checkpoint", "tokenizer"}


def test_replacing_does_not_delete_what_is_no_checkpoint(tmp_path: Path, make_model: MakeModel) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("ten years")
    with pytest.raises(InputError, match="home"):
        save_checkpoint(tmp_path / "home", make_model(), None, [], {}, replace=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "ten years"


def broken_sentences() -> Any:
    yield "one"
    raise RuntimeError("in the middle")


def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, make_model: MakeModel) -> None:
    with pytest.raises(RuntimeError, match="in the middle"):
        save_checkpoint(tmp_path / "checkpoint", make_model(), None, broken_sentences(), {})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_leaves_the_old_one(saved: Path, make_model: MakeModel) -> None:
    with pytest.raises(RuntimeError, match="in the middle"):
        save_checkpoint(saved, make_model(seed=1), None, broken_sentences(), {}, replace=True)
    assert load_checkpoint(saved).sentences == SENTENCES
    assert names_beside(saved) == {"checkpoint", "tokenizer"}


KILLED = """
import os, signal, sys
from pathlib import Path
from txport.models import Transformer, preset, save_checkpoint
def sentences():
    yield "one"
    os.kill(os.getpid(), signal.SIGKILL)
model = Transformer(preset("tiny", source_vocabulary=40, target_vocabulary=40))
save_checkpoint(Path(sys.argv[1]), model, None, sentences(), {})
"""


def test_a_kill_in_the_middle_leaves_no_checkpoint(tmp_path: Path, make_model: MakeModel) -> None:
    target = tmp_path / "checkpoint"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], capture_output=True, timeout=500)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not target.exists()
    save_checkpoint(target, make_model(), None, [], {})
    load_checkpoint(target)
    assert names_beside(target) == {"checkpoint"}, "what the killed process left was not cleaned up"

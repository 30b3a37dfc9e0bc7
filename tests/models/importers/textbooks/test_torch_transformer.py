"""Imports of state dicts around torch.nn.Transformer, against that module itself."""

import collections
import datetime
import json
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from foreign_models import (
    FEW,
    INPUTS,
    MADE,
    assert_varied,
    changed_json,
    greedy,
    identical,
    import_here,
    padded,
    random_sources,
    sentencepiece_model,
    shake,
    until_end,
    write_json,
)
from safetensors.torch import save_file
from token_lists import check_lists
from torch import Tensor, nn
from torch_seq2seq import TorchSeq2Seq
from txport.models.importers import weights
from txport.models.importers.textbooks.torch_transformer import TorchDescription
from txport.runtime.bundle.strict_json import decode
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.text.tokenizer import open_tokenizer

PAD, UNK, BOS, EOS = 0, 1, 2, 3
NAMES = {
    "transformer": "transformer",
    "source_embedding": "source_embedding.weight",
    "target_embedding": "target_embedding.weight",
    "source_positions": None,
    "target_positions": None,
    "projection": "projection",
}
SIZES = {"d_model": 16, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24}
GRID: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm_first": True, "activation": "gelu"},
    "no_bias": {"bias": False, "num_decoder_layers": 1},
    "three_heads": {"d_model": 30, "nhead": 3, "layer_norm_eps": 1e-3, "norm_first": True, "eos_bias": 2.5},
}


def describe(directory: Path, **changes: Any) -> None:
    fields = {
        "weights": "model.pt",
        "heads": 2,
        "norm_first": False,
        "activation": "relu",
        "layer_norm_epsilon": 1e-5,
        "scale_embedding": True,
        "max_positions": 40,
        "pad_id": PAD,
        "unk_id": UNK,
        "bos_id": BOS,
        "eos_id": EOS,
        "names": NAMES,
    }
    write_json(directory / "torch.json", {**fields, **changes})


def make(
    directory: Path,
    vocabularies: tuple[int, int] = (50, 55),
    change: Callable[[Any], None] = lambda model: None,
    eos_bias: float = 4.0,
    **options: Any,
) -> TorchSeq2Seq:
    """A model with random weights, saved by torch.save, and its torch.json."""
    given = {**SIZES, **options}
    transformer = nn.Transformer(**given, batch_first=True, dropout=0.0)
    model = TorchSeq2Seq(*vocabularies, 40, transformer).eval()
    change(model)
    shake(model, seed=3, scale=1.3)
    model.projection.bias.data[EOS] = eos_bias
    directory.mkdir()
    torch.save(model.state_dict(), directory / "model.pt")
    describe(
        directory,
        heads=given["nhead"],
        norm_first=given.get("norm_first", False),
        activation=given.get("activation", "relu"),
        layer_norm_epsilon=given.get("layer_norm_eps", 1e-5),
    )
    return model


@torch.inference_mode()
def generate(model: TorchSeq2Seq, sources: list[list[int]]) -> list[list[int]]:
    """Greedy search by the whole decoder at each step, as one writes it at first."""
    ids, lengths = padded(sources, PAD)
    padding = torch.arange(ids.shape[1])[None] >= lengths[:, None]
    made = torch.full((len(ids), 1), BOS)
    for _ in range(MADE):
        made = torch.cat([made, model(ids, padding, made)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return until_end(made.tolist(), EOS)


def assert_same(checkpoint: Any, model: TorchSeq2Seq, inputs: int = INPUTS) -> None:
    """Compare encoder outputs, logits and greedy ids. `FEW` inputs are for files with the weights of `GRID["post"]`."""
    sources = random_sources(range(4, 50), [EOS])[:inputs]
    ids, lengths = padded(sources[:24], PAD)
    padding = torch.arange(ids.shape[1])[None] >= lengths[:, None]
    targets = torch.randint(4, 50, (len(ids), 9), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        x = model.source_embedding(ids) * model.scale + model.positions[: ids.shape[1]]
        expected_memory = model.transformer.encoder(x, src_key_padding_mask=padding)
        expected = model(ids, padding, targets)
        memory = checkpoint.model.encode(ids, lengths)
        logits = checkpoint.model.decode(targets, memory, lengths)
    assert (memory - expected_memory)[~padding].abs().max() < 1e-4
    assert (logits - expected).abs().max() < 3e-4 and logits.std() > 0.1
    made = generate(model, sources)
    if inputs == INPUTS:
        assert_varied(made, EOS)
    assert identical(greedy(checkpoint, sources), made) == inputs


@pytest.mark.parametrize("name", GRID)
def test_same_numbers_and_ids_as_pytorch(name: str, tmp_path: Path) -> None:
    model = make(tmp_path / "torch", **GRID[name])
    checkpoint = import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == ("pre" if GRID[name].get("norm_first") else "post_final")
    assert_same(checkpoint, model)


def test_one_table_for_all(tmp_path: Path) -> None:
    def tie(model: Any) -> None:
        model.target_embedding.weight = model.source_embedding.weight
        model.projection.weight = model.source_embedding.weight

    model = make(tmp_path / "torch", (50, 50), tie, eos_bias=2.5)
    checkpoint = import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.share_embeddings and checkpoint.config.tie_projection
    assert_same(checkpoint, model)


def test_stacks_without_a_final_norm(tmp_path: Path) -> None:
    """As in the paper."""

    def strip(model: Any) -> None:
        model.transformer.encoder.norm = model.transformer.decoder.norm = None

    model = make(tmp_path / "torch", change=strip)
    checkpoint = import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.config.norm == "post"
    assert_same(checkpoint, model)


def test_other_names_learned_positions_and_safetensors(tmp_path: Path) -> None:
    """The names of PyTorch's tutorial, where positions are a buffer `[length, 1, d_model]`."""
    model = make(tmp_path / "torch")
    table = 0.7 * torch.randn(60, 1, 16, generator=torch.Generator().manual_seed(0))
    model.positions = table[:40, 0]
    renamed: dict[str, Tensor] = {"pos.pe": table}
    for name, tensor in model.state_dict().items():
        name = name.replace("source_embedding", "src_tok.embedding").replace("target_embedding", "tgt_tok.embedding")
        renamed[name.replace("projection", "generator").replace("transformer.", "net.")] = tensor
    save_file(renamed, tmp_path / "torch" / "weights.safetensors")
    names = {
        "transformer": "net",
        "source_embedding": "src_tok.embedding.weight",
        "target_embedding": "tgt_tok.embedding.weight",
        "source_positions": "pos.pe",
        "target_positions": "pos.pe",
        "projection": "generator",
    }
    changed_json(tmp_path / "torch" / "torch.json", weights="weights.safetensors", names=names)
    assert_same(import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False), model)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 3}, "divisible"),
        ({"heads": None}, "lacks the field 'heads'"),
        ({"activation": "tanh"}, "not one of"),
        ({"weights": "other.pt"}, "other.pt is missing"),
        ({"eos_id": 50}, "eos_id"),
        ({"names": {**NAMES, "transformer": "net"}}, "has no net.encoder.layers.0"),
        ({"names": {**NAMES, "source_embedding": "x"}}, "lacks x"),
        ({"names": {**NAMES, "projection": "x"}}, "lacks x.weight"),
        ({"names": {**NAMES, "source_positions": "projection.bias"}}, "shape"),
        ({"names": {**NAMES, "source_embedding": "projection.bias"}}, "no embedding"),
    ],
)
def test_descriptions_that_do_not_fit(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    make(tmp_path / "torch")
    changed_json(tmp_path / "torch" / "torch.json", **fields)
    with pytest.raises(CheckpointError, match=words) as caught:
        import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False)
    assert "\n" not in str(caught.value)


def test_heads_are_not_for_the_command_line_to_say(tmp_path: Path) -> None:
    make(tmp_path / "torch")
    with pytest.raises(InputError, match="--heads 4 is for annotated and d2l: .*, of torch, specifies it itself"):
        import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False, heads=4)


def test_pre_norm_without_a_final_norm_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "torch")
    state = torch.load(tmp_path / "torch" / "model.pt")
    torch.save({k: t for k, t in state.items() if "decoder.norm." not in k}, tmp_path / "torch" / "model.pt")
    with pytest.raises(CheckpointError, match="both stacks must have a final norm"):
        import_here(tmp_path / "torch", tmp_path / "checkpoint", tokenizer=False)


def test_text(tmp_path: Path) -> None:
    model = sentencepiece_model(40)
    make(tmp_path / "torch")
    with pytest.raises(CheckpointError, match=r"source\.model is missing.*--no-tokenizer"):
        import_here(tmp_path / "torch", tmp_path / "checkpoint")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "shared.model").write_bytes(model)
    checkpoint = import_here(tmp_path / "torch", tmp_path / "checkpoint", vocabulary=tmp_path / "models")
    ours = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    ids = ours.encode("the cat")
    assert ours.decode(ids[:-1]) == "the cat" and ids[-1] == EOS
    with pytest.raises(InputError, match="--target-language fr means nothing"):
        import_here(tmp_path / "torch", tmp_path / "other", target_language="fr")
    (tmp_path / "models" / "shared.model").write_bytes(sentencepiece_model(80))
    with pytest.raises(CheckpointError, match="pieces, but its embedding has 50 rows"):
        import_here(tmp_path / "torch", tmp_path / "other", vocabulary=tmp_path / "models")


def test_the_documented_file_is_an_example() -> None:
    readme = (Path(__file__).parents[4] / "models" / "README.md").read_text()
    (block,) = re.findall(r"^```json\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert json.loads(block)["names"] == NAMES
    description = decode(TorchDescription, json.loads(block), "torch.json")
    assert description.weights == "model.pt" and description.names.projection == NAMES["projection"]


def wrapped(state: dict[str, Tensor], layout: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What people save around a state dict, and changes of torch.json for it."""
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    around = {"epoch": 7, "loss": 0.5, "optimizer_state_dict": optimizer}
    if layout in ("model_state_dict", "state_dict", "model", "net", "anything"):
        return {layout: state, **around}, {}
    if layout == "with a criterion":
        return {"model": state, "criterion": {"weight": torch.ones(3)}, **around}, {}
    if layout == "lightning":
        names = {name: value if value is None else f"model.{value}" for name, value in NAMES.items()}
        inner = {f"model.{name}": tensor for name, tensor in state.items()}
        return {"state_dict": inner, "pytorch-lightning_version": "2.6.6", "hyper_parameters": {"a": 1}}, {
            "names": names
        }
    if layout == "lightning, short names":
        return {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}, "global_step": 5}, {}
    if layout == "averaged":  # torch.optim.swa_utils.AveragedModel
        return {"n_averaged": torch.tensor(5), **{f"module.{name}": tensor for name, tensor in state.items()}}, {}
    if layout == "deep":
        return {"checkpoint": {"model": {"state_dict": state}, **around}}, {}
    if layout == "activation checkpoints":
        inner = {name.replace("layers.0.", "layers.0._checkpoint_wrapped_module."): state[name] for name in state}
        return {"model": inner, **around}, {}
    prefix = {
        "ddp": "module.",
        "compiled": "_orig_mod.",
        "both": "_orig_mod.module.",
        "compiled first": "module._orig_mod.",
        "sharded": "_fsdp_wrapped_module.",
    }[layout]
    return {"model": {prefix + name: tensor for name, tensor in state.items()}, **around}, {}


@pytest.mark.parametrize(
    "layout",
    [
        "model_state_dict",
        "state_dict",
        "model",
        "net",
        "anything",
        "with a criterion",
        "lightning",
        "lightning, short names",
        "ddp",
        "compiled",
        "both",
        "compiled first",
        "sharded",
        "averaged",
        "deep",
        "activation checkpoints",
    ],
)
def test_a_checkpoint_of_a_training_loop(layout: str, tmp_path: Path) -> None:
    """The one member that is a state dict, whatever else is there, and names without what wrappers add."""
    model = make(tmp_path / "theirs")
    state = torch.load(tmp_path / "theirs" / "model.pt")
    # The buffer of PyTorch's own translation tutorial, `[max_length, 1, d_model]`.
    place = torch.arange(0, 500).reshape(500, 1)
    den = torch.exp(-torch.arange(0, 16, 2) * torch.log(torch.tensor(10000.0)) / 16)
    table = torch.zeros(500, 16)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * den), torch.cos(place * den)
    state["positional_encoding.pos_embedding"] = table.unsqueeze(-2)
    value, changes = wrapped(state, layout)
    torch.save(value, tmp_path / "theirs" / "model.pt")
    if changes:
        changed_json(tmp_path / "theirs" / "torch.json", **changes)
    assert_same(import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False), model, FEW)


@pytest.mark.parametrize("member", ["checkpoint", "state"])
def test_values_beside_the_weights(member: str, tmp_path: Path) -> None:
    """Values of NumPy and of the standard library as training loops write them, also one level up."""
    model = make(tmp_path / "theirs")
    state = torch.load(tmp_path / "theirs" / "model.pt")
    around = {
        "epoch": numpy.int64(3),
        "best_loss": numpy.float64(0.5),
        "losses": [numpy.float32(0.5), numpy.bool_(True), numpy.str_("x")],
        "history": numpy.array([1.0, 2.0]),
        "names": numpy.array(["a", "b"]),
        "random": numpy.random.RandomState(0).get_state(),
        "output": Path("runs"),
        "times": (datetime.datetime(2026, 1, 1), datetime.timedelta(1)),
        "by name": collections.defaultdict(list, a=[numpy.int32(1)]),
        "last": collections.deque([1, 2], maxlen=3),
        "options": types.SimpleNamespace(rate=0.1),
    }
    for value in ({"model_state_dict": state, **around}, {member: {"model_state_dict": state, **around}, "step": 4}):
        torch.save(value, tmp_path / "theirs" / "model.pt")
        assert_same(import_here(tmp_path / "theirs", tmp_path / f"checkpoint{len(value)}", tokenizer=False), model, FEW)


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit",)


def test_code_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    make(tmp_path / "theirs")
    state = torch.load(tmp_path / "theirs" / "model.pt")
    for trap in (_Trap(), numpy.array([_Trap()], dtype=object)):
        torch.save({"model_state_dict": state, "epoch": trap}, tmp_path / "theirs" / "model.pt")
        with pytest.raises(CheckpointError, match="holds more than weights"):
            import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)


def test_a_buffer_that_is_no_sinusoid_is_not_left_out(tmp_path: Path) -> None:
    make(tmp_path / "theirs")
    state = torch.load(tmp_path / "theirs" / "model.pt")
    torch.save({**state, "positional_encoding.pos_embedding": torch.ones(500, 1, 16)}, tmp_path / "theirs" / "model.pt")
    with pytest.raises(CheckpointError, match="positional_encoding.pos_embedding"):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {"x": torch.ones(2)}, "b": {"y": torch.ones(2)}, "epoch": 1}, "several state dicts .a, b."),
        ({"epoch": 1, "loss": 2.0}, "'epoch' among its weights, which is not a tensor, and no state dict inside"),
        ({"optimizer_state_dict": {"state": {}}, "x": torch.ones(2)}, "no state dict inside"),
    ],
)
def test_checkpoints_without_one_state_dict(value: dict[str, Any], words: str, tmp_path: Path) -> None:
    make(tmp_path / "theirs")
    torch.save(value, tmp_path / "theirs" / "model.pt")
    with pytest.raises(CheckpointError, match=words):
        import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False)


def test_a_checkpoint_that_lightning_wrote(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="needs lightning: pip install 'txport[dev]'")
    model = make(tmp_path / "theirs")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, size: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.model = model

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=0, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu"
    )
    trainer.strategy.connect(Module(3))
    trainer.save_checkpoint(tmp_path / "theirs" / "model.ckpt")
    changed_json(tmp_path / "theirs" / "torch.json", weights="model.ckpt")
    assert_same(import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=False), model, FEW)


@pytest.mark.parametrize("letters", [False, True], ids=["words", "characters"])
def test_lists_of_tokens(letters: bool, tmp_path: Path) -> None:
    make(tmp_path / "theirs")
    check_lists(tmp_path / "theirs", tmp_path, letters)


def test_tensors_of_a_file_that_is_mapped_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a large file is, while it is read."""
    mappings = []
    read_pickle = weights.read_pickle
    monkeypatch.setattr(weights, "read_pickle", lambda file: mappings.append(file) or read_pickle(file))
    state = {name: torch.randn(5, 3) for name in "abcd"}
    torch.save(state, tmp_path / "model.pt")
    for limit, expected in ((weights.MAPPED_BYTES, 1), (4 * 15, 2), (0, 4)):
        monkeypatch.setattr(weights, "MAPPED_BYTES", limit)
        mappings.clear()
        stored = weights.read_state_dict(tmp_path / "model.pt")
        assert all(torch.equal(stored[name].read(1, 4), tensor[1:4]) for name, tensor in state.items())
        assert len(mappings) == expected

"""LoRA adapters merged at import, against peft's own merge."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import assert_same_numbers, changed_json, import_here, random_sources
from safetensors.torch import load_file, save_file
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import CheckpointError, InputError

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

from added_tokens import FAMILIES, saved  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 16},
    "rslora": {"target_modules": ["q_proj", "fc1", "out_proj"], "r": 4, "lora_alpha": 7, "use_rslora": True},
    "patterns": {
        "target_modules": ["q_proj", "k_proj", "fc2"],
        "r": 4,
        "rank_pattern": {"fc2": 2, r"encoder.layers.0.self_attn.q_proj": 1},
        "alpha_pattern": {"k_proj": 40},
    },
    "saved modules": {"target_modules": ["v_proj"], "r": 2, "modules_to_save": ["fc1"]},
    "biases": {"target_modules": ["v_proj"], "r": 2, "bias": "all"},
    "their biases": {"target_modules": ["v_proj"], "r": 2, "bias": "lora_only"},
    "expressions": {
        "target_modules": r".*decoder.*\.(q_proj|fc2)",
        "r": 4,
        "use_rslora": True,
        "rank_pattern": {r".*decoder.*q_proj": 2, r"^model.decoder.layers.0.fc2": 3},
        "alpha_pattern": {r"layers\.0\.fc2": 30},
    },
    "parameters": {"target_modules": ["fc1"], "r": 2, "target_parameters": ["fc2.weight"]},
    "transposed": {"target_modules": ["q_proj", "fc1"], "r": 2, "fan_in_fan_out": True},
    "one layer": {"target_modules": ["q_proj"], "r": 2, "layers_to_transform": [0], "layers_pattern": "layers"},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "theirs"
    saved("marian", directory)
    return directory


def model_of(directory: Path, family: str) -> Any:
    name = FAMILIES[family][1]
    return getattr(transformers, f"{name}Model" if name == "MarianMT" else name).from_pretrained(directory).eval()


def trained(base: Path, family: str, directory: Path, **options: Any) -> Any:
    """An adapter with random weights in `directory`; the model that peft merges."""
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'txport[dev]'")
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model_of(base, family), peft.LoraConfig(**options))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data + 0.3 * torch.randn_like(parameter)
    adapted.save_pretrained(directory)
    return adapted.merge_and_unload().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_pefts_merge(base: Path, kind: str, tmp_path: Path) -> None:
    merged = trained(base, "marian", tmp_path / "adapter", **KINDS[kind])
    checkpoint = import_here(base, tmp_path / "checkpoint", tokenizer=False, adapter=tmp_path / "adapter")
    sources = random_sources(range(2, 60), [checkpoint.config.eos_id])
    assert_same_numbers(checkpoint, merged, sources)
    with pytest.raises(AssertionError):  # the base alone has others
        assert_same_numbers(import_here(base, tmp_path / "base", tokenizer=False), merged, sources)


@pytest.mark.parametrize(
    ("family", "modules"), [("t5", ["q", "v", "wo"]), ("bart", ["q_proj", "fc1"]), ("m2m100", ["k_proj", "fc2"])]
)
def test_other_families(family: str, modules: list[str], tmp_path: Path) -> None:
    saved(family, tmp_path / "theirs")
    merged = trained(tmp_path / "theirs", family, tmp_path / "adapter", target_modules=modules, r=2, lora_alpha=9)
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "out", tokenizer=False, adapter=tmp_path / "adapter")
    assert_same_numbers(checkpoint, merged, random_sources(range(5, 60), [checkpoint.config.eos_id]))


TABLES: dict[str, tuple[str, dict[str, Any]]] = {
    "saved head": ("marian", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "saved tables": ("nllb", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "saved shared table": ("t5", {"target_modules": ["q"], "modules_to_save": ["shared"]}),
    "adapted head": ("t5", {"target_modules": ["q", "lm_head"]}),
    "adapted embeddings": ("marian", {"target_modules": ["embed_tokens"]}),
    "adapted head, saved embeddings": ("bart", {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]}),
}


@pytest.mark.parametrize("kind", TABLES)
def test_one_of_several_tied_tables(kind: str, tmp_path: Path) -> None:
    """Numbers as of peft's model before it merges: its merge would change all tables that are tied."""
    peft = pytest.importorskip("peft", reason="needs peft: pip install 'txport[dev]'")
    family, options = TABLES[kind]
    saved(family, tmp_path / "theirs")
    trained(tmp_path / "theirs", family, tmp_path / "adapter", r=2, **options)
    adapted = peft.PeftModel.from_pretrained(model_of(tmp_path / "theirs", family), tmp_path / "adapter").eval()
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "out", tokenizer=False, adapter=tmp_path / "adapter")
    sources = random_sources(range(5, 60), [checkpoint.config.eos_id])
    assert_same_numbers(checkpoint, adapted.base_model.model, sources)


def hand_made(directory: Path, base: Path, rank: int = 1, **fields: Any) -> dict[str, torch.Tensor]:
    """An adapter of one module, as peft writes it, without peft; its matrices have equal rows and columns."""
    directory.mkdir()
    module = "model.encoder.layers.0.self_attn.q_proj"
    weight = load_file(base / "model.safetensors")[f"{module}.weight"]
    pair = {
        f"base_model.model.{module}.lora_A.weight": torch.arange(weight.shape[1]).float().repeat(rank, 1),
        f"base_model.model.{module}.lora_B.weight": torch.ones(weight.shape[0], rank),
    }
    save_file(pair, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 3, "base_model_name_or_path": "somebody/base", **fields}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return pair


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 3.0),
        ({"lora_alpha": 0.5}, 0.5),
        ({"fan_in_fan_out": True}, 3.0),
        ({"rank": 4}, 3.0),
        ({"rank": 4, "use_rslora": True}, 6.0),
    ],
)
def test_the_sum_by_hand(base: Path, fields: dict[str, Any], scale: float, tmp_path: Path) -> None:
    """A product of rank r is r times a row; it is divided by r, or with rsLoRA by its square root."""
    hand_made(tmp_path / "adapter", base, **fields)
    plain, adapted = (
        import_model(str(base), None, ImportOptions(tokenizer=False, adapter=adapter)).plan
        for adapter in (None, tmp_path / "adapter")
    )
    for name, part in plain.parts.items():
        before, after = part.read(0, part.shape[0]), adapted.parts[name].read(0, part.shape[0])
        changed = name == "encoder.0.attention.query.weight"
        added = scale * torch.arange(part.shape[-1]).float().expand(part.shape) if changed else torch.zeros(part.shape)
        assert torch.allclose(after.float(), before.float() + added, atol=1e-6), name


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported; only LORA is"),
        ({"use_dora": True}, "DoRA .use_dora. is not supported"),
        ({"r": 2}, "has rank 2, but its matrices have shapes"),
        ({"lora_alpha": "x"}, "lora_alpha must be a positive number"),
        ({"rank_pattern": [3]}, "rank_pattern must be an object"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern has a pattern that cannot be read"),
        ({"trainable_token_indices": [5]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication = .* is not supported"),
        ({"use_bdlora": {"nblocks": 2}}, "use_bdlora = .* is not supported"),
        ({"kasa_config": {"beta": 1}}, "kasa_config = .* is not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa' is not supported"),
    ],
)
def test_other_adapters_are_refused(base: Path, fields: dict[str, Any], words: str, tmp_path: Path) -> None:
    hand_made(tmp_path / "adapter", base, **fields)
    with pytest.raises(CheckpointError, match=words):
        import_here(base, tmp_path / "out", tokenizer=False, adapter=tmp_path / "adapter")


def test_adapters_that_do_not_fit(base: Path, tmp_path: Path) -> None:
    pair = hand_made(tmp_path / "adapter", base)
    first, second = pair
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    for tensors, words in (
        ({first: pair[first]}, "one of the two matrices only"),
        ({first: pair[first][:, :5], second: pair[second]}, "its matrices are for"),
        ({**pair, "base_model.model.model.x.weight": torch.ones(2)}, "changes model.x.weight, which this base"),
        ({"x": torch.ones(2)}, "none of a LoRA adapter"),
    ):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        with pytest.raises(CheckpointError, match=words):
            import_here(base, tmp_path / "out", tokenizer=False, adapter=tmp_path / "adapter")
    file.unlink()
    with pytest.raises(CheckpointError, match="has neither adapter_model.safetensors nor adapter_model.bin"):
        import_here(base, tmp_path / "out", tokenizer=False, adapter=tmp_path / "adapter")


def test_an_adapter_alone_names_its_base(base: Path, tmp_path: Path) -> None:
    hand_made(tmp_path / "adapter", base)
    with pytest.raises(
        CheckpointError, match=r"is an adapter \(LORA\) of somebody/base.*import somebody/base with --adapter"
    ):
        import_here(tmp_path / "adapter", tmp_path / "out")
    changed_json(tmp_path / "adapter" / "adapter_config.json", base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match="of the model that it was trained on"):
        import_here(tmp_path / "adapter", tmp_path / "out")
    (tmp_path / "file.pt").write_bytes(b"x")
    with pytest.raises(InputError, match="is for models of Hugging Face's"):
        import_here(tmp_path / "file.pt", tmp_path / "out", kind="fairseq", adapter=tmp_path / "adapter")

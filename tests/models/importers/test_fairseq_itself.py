"""fairseq imports, against fairseq's own models, collater, generator and configuration."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq_package import import_fairseq
from foreign_models import (
    INPUTS,
    MADE,
    assert_varied,
    greedy,
    identical,
    import_here,
    padded,
    random_sources,
    shake,
)

PAD, EOS = 1, 2
# Options, and a seed with which many answers end, at different lengths.
GRID: dict[str, dict[str, Any]] = {
    "post_norm_two_dictionaries": {"seed": 2},
    "pre_norm_shared": {"seed": 2, "normalize_before": True, "share_all_embeddings": True, "activation_fn": "gelu"},
    "learned_positions": {
        "seed": 1,
        "learned_pos": True,
        "layernorm_embedding": True,
        "no_scale_embedding": True,
        "share_decoder_input_output_embed": True,
    },
    "three_heads": {"seed": 2, "embed_dim": 24, "ffn_embed_dim": 20, "attention_heads": 3, "encoder_layers": 1},
}


@pytest.fixture(scope="module")
def fairseq() -> Any:
    """The package, or a skip."""
    return import_fairseq()


def make(fairseq: Any, file: Path, seed: int, **changes: Any) -> tuple[Any, Any]:
    """A random model and its target dictionary, in a checkpoint with the configuration that fairseq-train stores."""
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models.transformer import TransformerModel
    from omegaconf import OmegaConf

    sides = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2}
    sides |= {name: changes.pop(name) for name in (*sides, "normalize_before", "learned_pos") if name in changes}
    both = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()}
    common = {"arch": "transformer", "task": "translation", "source_lang": "de", "target_lang": "en"}
    given = argparse.Namespace(**{**both, **common, "max_source_positions": 40, "max_target_positions": 40, **changes})

    def dictionary(count: int) -> Any:
        made = Dictionary()
        for number in range(count):
            made.add_symbol(f"piece{number}")
        return made

    source = dictionary(56)
    target = source if changes.get("share_all_embeddings") else dictionary(62)
    task = argparse.Namespace(source_dictionary=source, target_dictionary=target)
    model = TransformerModel.build_model(given, task).eval()
    shake(model, seed, scale=1.4)
    model.decoder.output_projection.weight.data[EOS] *= 3
    config = OmegaConf.to_container(convert_namespace_to_omegaconf(given), resolve=True, enum_to_str=True)
    file.parent.mkdir()
    fairseq.checkpoint_utils.torch_persistent_save(
        {"args": None, "cfg": config, "model": model.state_dict()}, str(file)
    )
    return model, target


def collated(fairseq: Any, sources: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """As fairseq's batches are: padded on the left."""
    rows = [torch.tensor(source) for source in sources]
    ids = fairseq.data.data_utils.collate_tokens(rows, PAD, EOS, left_pad=True)
    return ids, torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize("kind", GRID)
def test_same_numbers_and_ids(fairseq: Any, kind: str, tmp_path: Path) -> None:
    from fairseq.sequence_generator import SequenceGenerator

    model, dictionary = make(fairseq, tmp_path / "fairseq" / "checkpoint_best.pt", **GRID[kind])
    checkpoint = import_here(tmp_path / "fairseq", tmp_path / "checkpoint", tokenizer=False)
    sources = random_sources(range(4, 60), [EOS])
    ids, lengths = padded(sources[:24], PAD)
    theirs, _ = collated(fairseq, sources[:24])
    targets = torch.randint(4, len(dictionary), (24, 9), generator=torch.Generator().manual_seed(2))
    targets[:, 0] = EOS
    with torch.inference_mode():
        encoded = model.encoder(theirs, lengths)
        memory = checkpoint.model.encode(ids, lengths)
        logits = checkpoint.model.decode(targets, memory, lengths)
        expected = model.decoder(targets, encoder_out=encoded)[0]
    outputs = encoded["encoder_out"][0].transpose(0, 1)
    assert (memory[ids != PAD] - outputs[theirs != PAD]).abs().max() < 1e-4
    kept = [i for i in range(len(dictionary)) if i != PAD]
    assert (logits[..., kept] - expected[..., kept]).abs().max() < 1e-4
    assert logits.std() > 0.1, "a model that says nothing proves nothing"

    generator = SequenceGenerator([model], dictionary, beam_size=1, max_len_b=MADE + 1, min_len=0)
    batch = dict(zip(("src_tokens", "src_lengths"), collated(fairseq, sources), strict=True))
    rows = [hypotheses[0]["tokens"].tolist()[:MADE] for hypotheses in generator.generate([model], {"net_input": batch})]
    assert_varied(rows, EOS)
    assert identical(greedy(checkpoint, sources), rows) == INPUTS

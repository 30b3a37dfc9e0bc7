"""Records tests/data/foreign: tiny random models of fairseq, OpenNMT-py and eole, and what these make of sentences.

Two are of years ago. An environment that has txport[dev] runs them without what else they ask for:

    READTHEDOCS=1 pip install --no-deps --no-build-isolation fairseq==0.12.2
    pip install --no-deps OpenNMT-py==3.5.1 && pip install 'hydra-core>=1.3' 'bitarray>=2.6'
    PYTHONPATH=tests/helpers:tests/foreign python tests/data/make_foreign_models.py

eole's models alone: `make_foreign_models.py eole`, with what tests/foreign/eole_models.py names.

READTHEDOCS keeps fairseq from compiling what its Transformer does not need. Weights are numbers that float16 has.
Memory and logits are computed in float64, and only sentences are recorded of which every token is more probable than
the next one by far: no processor rounds to other numbers or ids.
"""

import argparse
import copy
import dataclasses
import functools
import importlib
import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from foreign_models import MADE, padded, random_sources, shake, until_end
from safetensors.torch import save_file
from torch import Tensor, nn

FOLDER = Path(__file__).with_name("foreign")
KEPT, ROWS, STEPS = 40, 6, 6  # sentences; of these with numbers; tokens of each
LEAD = 1e-3
POSITIONS = 40  # rows of OpenNMT-py's computed tables, which have 5,000


def record(
    name: str,
    package: str,
    model: nn.Module,
    config: dict[str, Any],
    sources: Sequence[list[int]],
    answers: Sequence[list[int]],
    numbers: Callable[[Sequence[list[int]], Tensor], tuple[Tensor, Tensor]],
    ids: tuple[int, int],
    beams: Sequence[list[int]] = (),
    *,
    weights: bool = True,
) -> None:
    """Write one model.

    Args:
        name: of the file.
        package: whose model it is, with its version.
        model: with weights that float16 has.
        config: as the package stores it.
        sources: ids.
        answers: greedy ids for each source.
        numbers: memory `[b, s, d]` and logits `[b, t, v]` of sources, each padded on the right, and of what the decoder
            reads.
        ids: pad, and what the decoder reads first.
        beams: ids for each source by the settings of `config`; empty ones are not compared.
        weights: write them, too.
    """
    pad, first = ids
    leads = []
    for source, answer in zip(sources, answers, strict=True):
        logits = numbers([source], torch.tensor([[first, *answer[:-1]]]))[1][0]
        best = logits.topk(2, dim=-1).values
        leads.append(float((best[:, 0] - best[:, 1]).min()))
    clear = [index for index, lead in enumerate(leads) if lead > LEAD]
    # One answer of each length comes first, then a second one of each.
    sizes = list(map(len, answers))
    kept = sorted(clear, key=lambda index: sizes[:index].count(sizes[index]))[:KEPT]
    assert len(kept) == KEPT
    targets = torch.randint(4, 56, (ROWS, STEPS), generator=torch.Generator().manual_seed(2))
    targets[:, 0] = first
    rows, lengths = padded([sources[i] for i in kept], pad)

    def table(rows: Sequence[list[int]]) -> Tensor:
        made = torch.full((KEPT, max(map(len, rows))), -1)
        for row, index in enumerate(kept):
            made[row, : len(rows[index])] = torch.tensor(rows[index])
        return made.short()

    state = {
        f"weights.{key}": (value[:POSITIONS] if key.endswith("pe.pe") else value.half()).clone()
        for key, value in model.state_dict().items()
        if weights and value.dtype == torch.float32
    }
    model.double()
    memory, logits = numbers([sources[i] for i in kept[:ROWS]], targets)
    tensors = {
        "sources": rows.short(),
        "lengths": lengths.short(),
        "targets": targets.short(),
        "answers": table(answers),
        "memory": memory.float(),
        "logits": logits.float(),
    }
    if beams:
        tensors["beams"] = table(beams)
    described = {"package": package, "config": json.dumps(config, default=lambda value: {"Namespace": vars(value)})}
    save_file({name: value.contiguous() for name, value in (state | tensors).items()}, FOLDER / name, described)


def rounded(model: nn.Module) -> None:
    """Make every weight a number of float16."""
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()


# fairseq

# What fairseq keeps of its generator's options with a model; its no_repeat_ngram_size acts on GPUs alone.
SEARCH = {"beam": 4, "lenpen": 0.6, "min_len": 2}
# Options, and a seed with which many answers end, at different lengths.
FAIRSEQ: dict[str, dict[str, Any]] = {
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


def fairseq_package() -> types.ModuleType:
    """fairseq 0.12.2 under a Python of today.

    Its configurations have other configurations as default values, which Python 3.11 and later take for mutable ones
    and refuse, unless they can be hashed. Nobody ever hashes them: while fairseq is imported, they can be.
    """
    plain = dataclasses.dataclass

    def hashable(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return functools.partial(hashable, **options)
        if cls.__module__.partition(".")[0] == "fairseq":
            options.setdefault("unsafe_hash", True)
        return plain(cls, **options)

    dataclasses.dataclass = hashable  # type: ignore[assignment]
    try:
        return importlib.import_module("fairseq")
    finally:
        dataclasses.dataclass = plain


def make_fairseq(fairseq: Any, name: str, seed: int, **changes: Any) -> None:
    """Record a random model with the configuration that fairseq-train stores."""
    from fairseq.data import Dictionary
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models.transformer import TransformerModel
    from fairseq.sequence_generator import SequenceGenerator
    from omegaconf import OmegaConf

    pad, eos = 1, 2
    sides = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2}
    sides |= {key: changes.pop(key) for key in (*sides, "normalize_before", "learned_pos") if key in changes}
    both = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()}
    common = {"arch": "transformer", "task": "translation", "source_lang": "de", "target_lang": "en"}
    positions = {"max_source_positions": 40, "max_target_positions": 40}
    given = argparse.Namespace(**{**both, **common, **positions, **SEARCH, **changes})

    def dictionary(count: int) -> Any:
        symbols = Dictionary()
        for number in range(count):
            symbols.add_symbol(f"piece{number}")
        return symbols

    source = dictionary(56)
    target = source if changes.get("share_all_embeddings") else dictionary(62)
    task = argparse.Namespace(source_dictionary=source, target_dictionary=target)
    model = TransformerModel.build_model(given, task).eval()
    shake(model, seed, scale=1.4)
    model.decoder.output_projection.weight.data[eos] *= 3
    rounded(model)
    config = OmegaConf.to_container(convert_namespace_to_omegaconf(given), resolve=True, enum_to_str=True)

    def collated(sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """As fairseq's batches are: padded on the left."""
        ids = fairseq.data.data_utils.collate_tokens([torch.tensor(row) for row in sources], pad, eos, left_pad=True)
        return ids, torch.tensor([len(row) for row in sources])

    @torch.inference_mode()
    def numbers(sources: Sequence[list[int]], targets: Tensor) -> tuple[Tensor, Tensor]:
        ids, lengths = collated(sources)
        encoded = model.encoder(ids, lengths)
        states = encoded["encoder_out"][0].transpose(0, 1)
        memory = torch.zeros_like(states)
        for row, length in enumerate(lengths):
            memory[row, :length] = states[row, ids.shape[1] - length :]
        return memory, model.decoder(targets, encoder_out=encoded)[0]

    sources = random_sources(range(4, 60), [eos])
    generator = SequenceGenerator([model], target, beam_size=1, max_len_b=MADE + 1, min_len=0)
    batch = dict(zip(("src_tokens", "src_lengths"), collated(sources), strict=True))
    answers = [found[0]["tokens"].tolist()[:MADE] for found in generator.generate([model], {"net_input": batch})]

    def beams(kind: torch.dtype, *, pad_counts: bool = True) -> list[list[list[int]]]:
        searched = copy.deepcopy(model).to(kind)
        if not pad_counts:  # its probability is not there, which ours leaves out as well
            searched.get_normalized_probs = lambda output, log_probs, sample=None: (
                output[0].index_fill(-1, torch.tensor([pad]), -float("inf")).log_softmax(-1)
            )
        options = {"beam_size": SEARCH["beam"], "len_penalty": SEARCH["lenpen"], "min_len": SEARCH["min_len"]}
        best = SequenceGenerator([searched], target, **options).generate([], {"net_input": batch})
        return [[each["tokens"].tolist() for each in hypotheses] for hypotheses in best]

    # Where nothing but the search decides, and no hypothesis has reached the limit.
    runs = beams(torch.float64), beams(torch.float32), beams(torch.float64, pad_counts=False)
    clear = [
        first[0] if first == second == third and max(map(len, first)) < 40 else []
        for first, second, third in zip(*runs, strict=True)
    ]
    record(f"fairseq_{name}.safetensors", "fairseq 0.12.2", model, config, sources, answers, numbers, (pad, eos), clear)


# OpenNMT-py

UNK, PAD, BOS, EOS = 0, 1, 2, 3
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
OPTIONS = {
    "model_type": "text",
    "model_task": "seq2seq",
    "encoder_type": "transformer",
    "decoder_type": "transformer",
    "enc_layers": 2,
    "dec_layers": 2,
    "enc_hid_size": 16,
    "dec_hid_size": 16,
    "heads": 2,
    "transformer_ff": 24,
    "dropout": [0.1],
    "attention_dropout": [0.1],
    "position_encoding": True,
    "position_encoding_type": "SinusoidalInterleaved",
    "max_relative_positions": 0,
    "relative_positions_buckets": 0,
    "self_attn_type": "scaled-dot",
    "pos_ffn_activation_fn": "relu",
    "add_qkvbias": False,
    "add_ffnbias": True,
    "norm_eps": 1e-6,
    "layer_norm": "standard",
    "copy_attn": False,
    "generator_function": "softmax",
    "share_embeddings": False,
    "share_decoder_embeddings": False,
}
OPENNMT: dict[str, dict[str, Any]] = {
    "two_vocabularies": {},
    "shared": {"share_embeddings": True, "share_decoder_embeddings": True, "add_qkvbias": True},
    "copies": {"share_embeddings": True, "share_decoder_embeddings": True, "copy_attn": True},
    "copies_untied": {"share_embeddings": True, "copy_attn": True, "heads": 4, "dec_layers": 1},
    "three_heads": {
        "heads": 3,
        "enc_hid_size": 30,
        "dec_hid_size": 30,
        "pos_ffn_activation_fn": "gelu",
        "dec_layers": 1,
    },
    "relative": {"position_encoding": False, "max_relative_positions": 4, "share_decoder_embeddings": True},
    "concatenated": {
        "position_encoding_type": "SinusoidalConcat",
        "add_ffnbias": False,
        "norm_eps": 1e-3,
        "eos_bias": 2.5,
    },
}


def opennmt(module: str) -> Any:
    """A module of OpenNMT-py, without what its packages import beside it."""
    if "onmt" not in sys.modules:
        spec = importlib.util.find_spec("onmt")
        assert spec is not None and spec.submodule_search_locations
        for name in ("onmt", "onmt.utils", "onmt.encoders", "onmt.decoders"):
            package = types.ModuleType(name)
            package.__path__ = ["/".join([spec.submodule_search_locations[0], *name.split(".")[1:]])]
            sys.modules[name] = package
    return importlib.import_module(f"onmt.{module}")


class Theirs(nn.Module):
    """Encoder, decoder and generator as OpenNMT-py's model builder puts them together."""

    def __init__(self, source: int, target: int, given: dict[str, Any]) -> None:
        super().__init__()
        embeddings = opennmt("modules.embeddings").Embeddings
        positions = {name: given[name] for name in ("position_encoding", "position_encoding_type")}
        sizes = given["enc_hid_size"], given["heads"], given["transformer_ff"], 0.0, 0.0
        common = {
            "max_relative_positions": given["max_relative_positions"],
            "relative_positions_buckets": 0,
            "pos_ffn_activation_fn": given["pos_ffn_activation_fn"],
            "add_qkvbias": given["add_qkvbias"],
            "add_ffnbias": given["add_ffnbias"],
            "norm_eps": given["norm_eps"],
        }
        width = given["enc_hid_size"]
        self.encoder = opennmt("encoders.transformer").TransformerEncoder(
            given["enc_layers"], *sizes, embeddings(width, source, PAD, **positions), **common
        )
        self.decoder = opennmt("decoders.transformer").TransformerDecoder(
            given["dec_layers"],
            given["dec_hid_size"],
            given["heads"],
            given["transformer_ff"],
            given["copy_attn"],
            "scaled-dot",
            0.0,
            0.0,
            embeddings(width, target, PAD, **positions),
            aan_useffn=False,
            full_context_alignment=False,
            alignment_layer=-1,
            alignment_heads=0,
            **common,
        )
        self.copies = given["copy_attn"]
        if self.copies:
            self.generator = opennmt("modules.copy_generator").CopyGenerator(width, target, PAD)
        else:
            self.generator = nn.Linear(width, target)
        if given["share_embeddings"]:
            self.decoder.embeddings.word_lut.weight = self.encoder.embeddings.word_lut.weight
        if given["share_decoder_embeddings"]:
            projection = self.generator.linear if self.copies else self.generator
            projection.weight = self.decoder.embeddings.word_lut.weight

    @torch.inference_mode()
    def logits(self, ids: Tensor, lengths: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        memory, _, _ = self.encoder(ids[..., None], lengths)
        self.decoder.init_state(ids[..., None], memory, None)
        states, attentions = self.decoder(targets[..., None], memory, src_len=lengths, step=None)
        if self.copies:
            return memory, self._mixture(states, attentions["copy"], ids)
        return memory, self.generator(states)

    def _mixture(self, states: Tensor, attention: Tensor, ids: Tensor) -> Tensor:
        """Its generator's probabilities, those of the source's words added to the same words of the vocabulary."""
        batch, steps, width = states.shape
        vocabulary = self.generator.linear.out_features
        # Time comes before rows, and the source's words are those of the vocabulary.
        words = nn.functional.one_hot(ids, vocabulary).to(states.dtype)
        both = self.generator(
            states.transpose(0, 1).reshape(-1, width), attention.transpose(0, 1).reshape(steps * batch, -1), words
        )
        said, copied = both.split(vocabulary, dim=1)
        # What it copies has rows before time.
        said = said.reshape(steps, batch, vocabulary).transpose(0, 1)
        return (said + copied.reshape(batch, steps, vocabulary)).log()


def make_opennmt(name: str, **changes: Any) -> None:
    """Record a random model."""
    given = {**OPTIONS, **changes}
    eos_bias = given.pop("eos_bias", 4.0)
    model = Theirs(56, 56 if given["share_embeddings"] else 58, given).eval()
    shake(model, seed=5, scale=1.5)
    (model.generator.linear if given["copy_attn"] else model.generator).bias.data[EOS] = eos_bias
    rounded(model)
    sources = random_sources(range(4, 56), [])
    ids, lengths = padded(sources, PAD)
    made = torch.full((len(ids), 1), BOS)
    for _ in range(MADE):
        made = torch.cat([made, model.logits(ids, lengths, made)[1][:, -1].argmax(-1, keepdim=True)], dim=1)

    def numbers(sources: Sequence[list[int]], targets: Tensor) -> tuple[Tensor, Tensor]:
        return model.logits(*padded(sources, PAD), targets)

    answers = until_end(made.tolist(), EOS)
    record(f"opennmt_{name}.safetensors", "OpenNMT-py 3.5.1", model, given, sources, answers, numbers, (PAD, BOS))


EOLE: dict[str, dict[str, Any]] = {
    "shared": {"share_embeddings": True, "share_decoder_embeddings": True, "add_qkvbias": True, "eos_bias": 2.0},
    "rotary_halves": {
        "embeddings": {"position_encoding_type": "Rotary", "normalize": True},
        "rope_config": {"rotary_interleave": False},
        **{"mlp_activation_fn": "gated-silu", "layer_norm": "rms", "scale": 0.8},
    },
}


def make_eole(name: str, **options: Any) -> None:
    """Record a random model of eole."""
    import eole_models

    with tempfile.TemporaryDirectory() as place:
        model = eole_models.write_model(Path(place), **options)
        config = json.loads(Path(place, "config.json").read_bytes())
    rounded(model)
    pad, start, end = (eole_models.tokens().index(each) for each in (eole_models.PAD, eole_models.BOS, eole_models.EOS))
    sources = random_sources(range(4, 56), [])
    made = torch.full((len(sources), 1), start)
    for _ in range(MADE):
        last = eole_models.logits(model, sources, made, pad)[:, -1]
        made = torch.cat([made, last.argmax(-1, keepdim=True)], dim=1)

    @torch.inference_mode()
    def numbers(sources: Sequence[list[int]], targets: Tensor) -> tuple[Tensor, Tensor]:
        ids, _ = padded(sources, pad)
        memory = model.encoder(model.src_emb(ids), pad_mask=ids.eq(pad)[:, None])[0]
        return memory, eole_models.logits(model, list(sources), targets, pad)

    answers = until_end(made.tolist(), end)
    record(f"eole_{name}.safetensors", "eole 0.6.4", model, config, sources, answers, numbers, (pad, start))


# Guided attention: for pairs of so many source and target tokens before eos, with links (source, target).
LENGTHS = ((6, 4), (5, 7), (2, 3))
LINKS = ([(0, 0), (3, 1), (4, 1), (5, 3)], [(4, 0), (0, 6)], [(1, 2), (0, 2)])


def record_alignment_losses() -> None:
    """Record what both packages say of one attention: sums over tokens."""
    from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
        LabelSmoothedCrossEntropyCriterionWithAlignment as Criterion,
    )
    from fairseq.data.language_pair_dataset import collate

    draw = torch.Generator().manual_seed(4)
    size = [len(LENGTHS), *(max(length) + 1 for length in list(zip(*LENGTHS, strict=True))[::-1])]
    attention = torch.randn(size, generator=draw)
    for row, (source, _) in enumerate(LENGTHS):
        attention[row, :, source + 1 :] = -float("inf")
    attention = (attention.softmax(-1) * 1e4).round() / 1e4
    samples = [
        {
            "id": row,
            "source": torch.full((source + 1,), 5),
            "target": torch.full((target + 1,), 5),
            "alignment": torch.tensor(links),
        }
        for row, ((source, target), links) in enumerate(zip(LENGTHS, LINKS, strict=True))
    ]
    batch = collate(samples, 0, 3, left_pad_source=False)
    # Sorted by length there.
    order = batch["id"].tolist()
    theirs = Criterion.compute_alignment_loss(None, batch, (None, {"attn": [attention[order]]}))
    alignment = opennmt("utils.alignment")
    # It needs a library that is not there, and what it builds is not needed here.
    sys.modules["onmt.model_builder"] = types.SimpleNamespace(load_test_model=None)  # type: ignore[assignment]
    loss = opennmt("utils.loss").LossCompute._compute_alignement_loss
    index = torch.tensor([(row, target, source) for row, links in enumerate(LINKS) for source, target in sorted(links)])
    reference = alignment.make_batch_align_matrix(index, size, normalize=True)
    other = loss(types.SimpleNamespace(lambda_align=1.0), attention, reference)
    losses = {"attention": attention.tolist(), "fairseq": float(theirs), "opennmt": float(other)}
    (FOLDER / "alignment_losses.json").write_text(json.dumps(losses) + "\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, changes in EOLE.items():
        make_eole(name, **changes)
    if "eole" in sys.argv[1:]:
        return
    fairseq = fairseq_package()
    for name, changes in FAIRSEQ.items():
        make_fairseq(fairseq, name, **changes)
    for name, changes in OPENNMT.items():
        make_opennmt(name, **changes)
    record_alignment_losses()


if __name__ == "__main__":
    main()

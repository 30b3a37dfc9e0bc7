"""Tiny models of other toolkits with random weights, saved by these toolkits, and comparisons with txport's models."""

import copy
import io
import json
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.reference import answers, pad
from txport.models.attention_maps import attention_maps
from txport.models.checkpoint import Checkpoint, load_checkpoint
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions, write_imported
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.native import missing
from txport.runtime.errors import CheckpointError
from txport.runtime.translator import Translator

LONGEST, MADE, INPUTS = 12, 16, 200
WHOLE_GRID = os.environ.get("TXPORT_WHOLE_GRID") == "1"
# Number of inputs of models whose kind another test compares on all `INPUTS`.
FEW = INPUTS if WHOLE_GRID else 48
CROSS = ("encoder_attn", "multihead_attn", "context_attn", "EncDecAttention")  # cross-attention in toolkits
WORDS = (
    "the a cat dog bird tree sees likes hears big small red blue and or not le la chat chien oiseau voit grand".split()
)


def assert_refused(
    source: Path | str, *words: str, kind: str | None = None, error: type = CheckpointError, **options: Any
) -> None:
    """Import a model, and check that the error is one sentence with these words, without temporary folders."""
    with pytest.raises(error) as caught:
        import_model(str(source), kind, ImportOptions(**options))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and not message.endswith(".") and "txport-import-" not in message, message


def import_here(source: Path, target: Path, kind: str | None = None, **options: Any) -> Checkpoint:
    """Import a model and load the checkpoint, like `tx-import` and `tx-export`."""
    write_imported(import_model(str(source), kind, ImportOptions(**options)), target, str(source), replace=False)
    return load_checkpoint(target)


def shake(model: torch.nn.Module, seed: int, scale: float = 1.0, but: str = "no such name") -> None:
    """Randomise all weights so that none is neutral. Neutral norms, biases and padding rows would hide wrong mappings.

    Computed tables, and weights whose names contain `but`, stay unchanged.
    """
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or but in name:
            continue
        noise = torch.randn(parameter.shape, generator=draw)
        if parameter.dim() > 1:
            # With sharp attention to the source, outputs follow the source and do not repeat one token.
            sharp = 3.0 if any(cross in name for cross in CROSS) else 1.0
            parameter.data = sharp * scale * noise * parameter.shape[-1] ** -0.5
        else:
            parameter.data = 0.1 * noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)


def random_sources(ids: Sequence[int], suffix: Sequence[int], prefix: Sequence[int] = ()) -> list[list[int]]:
    """Return `INPUTS` random sources of different lengths."""
    draw = random.Random(1)
    lengths = [draw.randrange(1, LONGEST) for _ in range(INPUTS)]
    return [[*prefix, *draw.choices(list(ids), k=length), *suffix] for length in lengths]


def padded(sources: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 ids `[b, s]` and their lengths `[b]`."""
    ids, lengths = pad(sources, pad_id)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def greedy(checkpoint: Checkpoint, sources: Sequence[Sequence[int]], prefix: Sequence[int] = ()) -> list[list[int]]:
    """Return the ids of txport's model, at most `MADE`."""
    made: dict[int, list[int]] = {}
    for answer in answers(checkpoint.model, sources, MADE, prefix):
        made.update(zip(answer.batch.indices, answer.batch.targets, strict=True))
    return [made[index] for index in range(len(sources))]


def until_end(rows: Sequence[Sequence[int]], eos: int) -> list[list[int]]:
    """Return the ids of `generate` without the start token, each row up to its first eos, at most `MADE`."""
    cut = [list(row)[1 : MADE + 1] for row in rows]
    return [row[: row.index(eos) + 1] if eos in row else row for row in cut]


def assert_same_numbers(
    checkpoint: Checkpoint, theirs: Any, sources: Sequence[Sequence[int]], banned: Sequence[int] = ()
) -> None:
    """Check that encoder outputs and teacher-forced logits equal Hugging Face's within 1e-4, in a padded batch."""
    config = checkpoint.config
    ours, theirs = _widened(checkpoint, theirs)
    ids, lengths = padded(sources[:24], config.pad_id)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    draw = torch.Generator().manual_seed(2)
    ordinary = torch.tensor([i for i in range(config.target_vocabulary) if i != config.pad_id])
    targets = ordinary[torch.randint(0, len(ordinary), (len(ids), 9), generator=draw)]
    targets[:, 0] = config.bos_id
    with torch.inference_mode():
        output = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=targets, use_cache=False)
        memory = ours.encode(ids, lengths)
        logits = ours.decode(targets, memory, lengths)
    kept = [i for i in range(config.target_vocabulary) if i not in banned]
    valid = mask.bool()
    assert (memory[valid] - output.encoder_last_hidden_state[valid]).abs().max() < 1e-4
    assert (logits[..., kept] - output.logits[..., kept]).abs().max() < 1e-4
    assert logits.std() > 0.1, "a model that says nothing proves nothing"
    _assert_same_attention(ours, theirs, (ids, lengths, mask), targets)


def _widened(checkpoint: Checkpoint, theirs: Any) -> tuple[Transformer, Any]:
    """Return copies of both models in float64.

    In float32, the order of sums, which depends on the processor, changes the results of a random model by more than a
    wrong constant may do. Hugging Face's FSMT has no float64 mask, so for FSMT both models stay in float32.
    """
    model, theirs = copy.deepcopy(checkpoint.model), copy.deepcopy(theirs)
    return (model, theirs) if theirs.config.model_type == "fsmt" else (model.double(), theirs.double())


def _assert_same_attention(
    model: Transformer, theirs: Any, source: tuple[torch.Tensor, torch.Tensor, torch.Tensor], targets: torch.Tensor
) -> None:
    """Check that all attention weights are equal within 1e-5; `targets` begin with bos.

    The tolerance is 1e-4 for models with float32 parts, such as FSMT and the norms of T5.
    """
    ids, lengths, mask = source
    single = theirs.config.model_type in ("fsmt", "t5", "mt5", "umt5")
    theirs.set_attn_implementation("eager")  # other implementations do not return weights
    with torch.inference_mode():
        output = theirs(
            input_ids=ids, attention_mask=mask, decoder_input_ids=targets, use_cache=False, output_attentions=True
        )
        made = torch.cat([targets[:, 1:], targets[:, 1:2]], dim=1)
        maps = attention_maps(model, ids, lengths, made, torch.full_like(lengths, made.shape[1]))
    tokens = mask.bool()[None, :, None, :, None]
    for found, layers in (
        (maps.encoder, torch.stack(output.encoder_attentions).masked_fill(~tokens, 0.0)),
        (maps.decoder, torch.stack(output.decoder_attentions)),
        (maps.cross, torch.stack(output.cross_attentions)),
    ):
        assert found.shape == layers.shape and found.std() > 0.01
        assert (found - layers).abs().max() < (1e-4 if single else 1e-5)


def generate(theirs: Any, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """Return greedy ids of a Hugging Face model in a padded batch, without the start token, up to the first end."""
    ids, lengths = padded(sources, theirs.config.pad_token_id)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    rows = theirs.generate(
        input_ids=ids, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=MADE + 1, **options
    )
    return until_end(rows.tolist(), theirs.config.eos_token_id)


def assert_same_ids(
    checkpoint: Checkpoint,
    theirs: Any,
    sources: Sequence[Sequence[int]],
    prefix: Sequence[int] = (),
    **options: Any,
) -> None:
    """Check that greedy ids, which begin with `prefix`, equal those of Hugging Face's `generate` with `options`.

    PyTorch computes them and, with TXPORT_WHOLE_GRID=1, also a bundle with each lowering and the fused engine.
    """
    expected = generate(theirs, sources, **options)
    assert_varied(expected, checkpoint.config.eos_id)
    assert identical(greedy(checkpoint, sources, prefix), expected) == INPUTS
    if not WHOLE_GRID:
        return
    with TemporaryDirectory() as place:
        bundle = Path(place, "bundle")
        export_bundle(checkpoint.directory, bundle, ExportOptions(verify=False, max_source=20, max_target=MADE))
        own = [] if checkpoint.tokenizer.target_prefix else list(prefix)  # otherwise the bundle adds the prefix
        for name, translator in translators(bundle):
            made = translator.translate_ids(sources, max_length=MADE, prefix=own)
            assert [each.ids for each in made] == expected, name


def translators(bundle: Path) -> Iterator[tuple[str, Translator]]:
    """Yield a translator by name for each lowering, and for the fused engine if it can run the model."""
    for lowering in LOWERINGS:
        yield lowering, Translator(bundle, "cpu", "ort", lowering=lowering, workers=0)
    if not missing() and Manifest.load(bundle).parameters is not None:
        yield "fused", Translator(bundle, "cpu", "fused", workers=0)


def assert_varied(rows: Sequence[Sequence[int]], eos: int) -> None:
    """Check that answers are varied enough for a comparison: they differ, and many, but not all, end early."""
    ended = [row for row in rows if eos in row]
    assert len({tuple(row) for row in rows}) > len(rows) / 12 and len({token for row in rows for token in row}) > 6
    assert len(rows) / 4 <= len(ended) < len(rows) and len({len(row) for row in ended}) > 3


def sentencepiece_model(vocabulary: int = 60, kind: str = "unigram") -> bytes:
    """Return a tiny SentencePiece model of words and letters."""
    lines = [" ".join(WORDS[(i * step) % len(WORDS)] for i in range(12)) for step in range(1, 60)]
    lines += list("abcdefghijklmnopqrstuvwxyz") * 3
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=vocabulary,
        hard_vocab_limit=kind == "bpe",
        model_type=kind,
        normalization_rule_name="identity",
        minloglevel=2,
        num_threads=1,
    )
    return out.getvalue()


def pieces(model: bytes) -> list[str]:
    """Return the pieces of a model except special ones."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def changed_json(file: Path, **fields: Any) -> None:
    """Replace fields of a JSON file; None removes one."""
    value = {**json.loads(file.read_bytes()), **fields}
    write_json(file, {key: item for key, item in value.items() if item is not None})


def identical(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> int:
    """Return the number of equal rows."""
    return int(np.sum([list(a) == list(b) for a, b in zip(first, second, strict=True)]))

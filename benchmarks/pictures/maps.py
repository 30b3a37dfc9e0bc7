"""Attention maps to draw, for one sentence and its translation, computed by a bundle or a checkpoint."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txport.runtime.bundle.archive import is_bundle
from txport.runtime.bundle.kinds import check_model
from txport.runtime.engine import Float32
from txport.runtime.errors import InputError
from txport.runtime.libraries import needs
from txport.runtime.options import Options
from txport.runtime.text.alignment import Span, strip_span

if TYPE_CHECKING:
    from txport.runtime.results import AttentionMaps
    from txport.runtime.text.tokenizer import Tokenizer

KINDS = ("encoder", "decoder", "cross")
TITLES = {
    "encoder": "Encoder self-attention: from each source token to all source tokens",
    "decoder": "Decoder self-attention: from the step that generates each token to the tokens before it",
    "cross": "Cross-attention: from the step that generates each token to the source",
}


@dataclass(frozen=True)
class Map:
    """One kind of attention: q queries attend to k keys.

    Attributes:
        kind: one of `KINDS`.
        weights: float32 `[layers, heads, q, k]`; rows sum to 1.
        queries, keys: labels.
        text: the text whose tokens are the queries.
        spans: the character span of each query in `text`; empty for queries without text.
    """

    kind: str
    weights: Float32
    queries: Sequence[str]
    keys: Sequence[str]
    text: str
    spans: Sequence[Span]

    def find(self, word: str) -> list[int]:
        """Return the queries of the first occurrence of a word, or the queries with this label; empty if it is absent.

        A word is any part of the text without a letter or digit directly before or after it.
        """
        match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", self.text)
        if word and match is not None:
            start, end = match.span()
            return [i for i, (first, after) in enumerate(self.spans) if first < end and start < after]
        return [i for i, label in enumerate(self.queries) if label == word]


def read_maps(model: Path, text: str, target: str | None, options: Options) -> list[Map]:
    """Return all kinds of attention, in the order of `KINDS`.

    Args:
        model: a bundle of `tx-export --with-attention`, which does not need PyTorch, or a checkpoint.
        text: the sentence.
        target: its translation; None to translate the sentence by the model.
        options: the languages, and the options of the translation by the model.

    Raises:
        InputError: `model` is neither a bundle nor a checkpoint, or a text is empty or too long for the model.
        BundleError, CheckpointError: the model is damaged, has no tokenizer, or has no graphs for attention.
    """
    for value, name in ((text, "text"), (target, "translation")):
        if value is not None and not value.strip():
            raise InputError(f"the {name} is empty: give a sentence")
    if is_bundle(model):
        with needs("ort"):
            from txport.runtime.translator import Translator
        with Translator(model, "cpu") as translator:
            maps = translator.attention_maps(text, target, options.changed({"strict": True}))
            return as_maps(maps, translator.tokenizer, translator.manifest.tokens.bos, text, options)
    check_model(model)
    with needs("export"):
        from txport.benchmarks.pictures.checkpoint import checkpoint_maps
    return as_maps(*checkpoint_maps(model, text, target, options), text, options)


def as_maps(maps: "AttentionMaps", tokenizer: "Tokenizer", bos: int, text: str, options: Options) -> list[Map]:
    """Return each kind of attention with the labels and the character spans of its tokens.

    Args:
        maps: attention of the whole sentence.
        tokenizer: tokenizer of its ids.
        bos: first input id of the decoder.
        text: the sentence.
        options: its languages.
    """
    _, spans, affixes = tokenizer.locate_source(text, options.source_language, options.target_language)
    source = [(0, 0)] * len(maps.source_ids)
    first = len(affixes.source_prefix)
    after = len(source) - len(affixes.source_suffix)
    source[first:after] = [strip_span(span, text) for span in spans]
    translation = tokenizer.decode(maps.target_ids)
    target = [strip_span(span, translation) for span in tokenizer.target_spans(maps.target_ids)]
    input_labels = [*tokenizer.target_pieces([bos]), *maps.target_labels[:-1]]
    return [
        Map("encoder", maps.encoder, maps.source_labels, maps.source_labels, text, source),
        Map("decoder", maps.decoder, maps.target_labels, input_labels, translation, target),
        Map("cross", maps.cross, maps.target_labels, maps.source_labels, translation, target),
    ]

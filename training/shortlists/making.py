"""Construction of shortlists from a corpus, and their quality."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.shortlist import Shortlist
from txport.runtime.calls.requests import Call, ignore_warnings
from txport.runtime.calls.search_options import ModelFacts
from txport.runtime.engine import Engine, Int64
from txport.runtime.errors import InputError
from txport.runtime.options import Options
from txport.runtime.search.decoding import decode_all
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.shortlists.links import Links

# Number of sentences that are translated at once.
PART = 512


def pieces_of(labels: Sequence[str]) -> dict[str, int]:
    """Return the id of each piece; for duplicates the first."""
    return {piece: number for number, piece in reversed(list(enumerate(labels)))}


def frequent(counts: Int64, count: int) -> Int64:
    """Return the `count` most frequent ids of `[vocabulary]` counts, without ids that never occur."""
    order = np.argsort(-counts, kind="stable")[:count]
    return order[counts[order] > 0]


def make(links: Links, always: Sequence[int] | Int64, manifest: Manifest, candidates: int, same: Links) -> Shortlist:
    """Create a shortlist.

    Args:
        links: links between source and target ids.
        always: target ids in every list; eos is added.
        manifest: of the model.
        candidates: maximum number of target ids for each source id from `links`.
        same: additional pairs, such as equal pieces, since names and numbers are often copied.

    Raises:
        InputError: there are no links.
    """
    model = manifest.model
    sources, targets = links.best(candidates)
    if not len(sources):
        raise InputError("nothing links a source word with a target word: give a corpus, or a table, that does")
    more_sources, more_targets = same.best(1)
    keys = np.append(sources, more_sources) * model.target_vocabulary + np.append(targets, more_targets)
    sources, targets = np.divmod(np.unique(keys), model.target_vocabulary)
    every = np.unique(np.append(np.asarray(always, np.int64), manifest.tokens.eos))
    kept = ~np.isin(targets, every)
    starts = np.searchsorted(sources[kept], np.arange(model.source_vocabulary + 1))
    return Shortlist(every, starts, targets[kept], model.target_vocabulary)


@dataclass(frozen=True)
class ShortlistQuality:
    """Quality with and without a shortlist.

    Attributes:
        sentences: number of translated sentences.
        bleu, full_bleu: BLEU with the shortlist and with all words.
        equal: number of sentences with equal ids.
        words: mean number of words in a sentence's list.
    """

    sentences: int
    bleu: float
    full_bleu: float
    equal: int
    words: float


def quality(
    shortlist: Shortlist,
    engine: Engine,
    tokenizer: Tokenizer,
    manifest: Manifest,
    texts: Sequence[str],
    references: Sequence[str],
) -> ShortlistQuality:
    """Translate sentences greedily with and without a shortlist, and compare both with references."""
    model = ModelFacts(manifest.tokens, manifest.model.target_vocabulary, shortlist=shortlist)
    made: list[list[list[int]]] = []
    words: list[int] = []
    for listed in (True, False):
        call = Call.of(tokenizer, engine.limits, Options(shortlist=listed), warn=ignore_warnings, model=model)
        requests = [call.needed(text, f"sentence {number}").request for number, text in enumerate(texts, 1)]
        words += [len(request.words) for request in requests if request.words is not None]
        parts = [decode_all(engine, requests[start : start + PART]) for start in range(0, len(requests), PART)]
        made.append([result.ids for part in parts for result in part])
    scores = [
        BLEU().corpus_score([tokenizer.decode(row) for row in ids], [list(references)]).score for ids in made
    ]  # fmt: skip
    equal = sum(one == other for one, other in zip(*made, strict=True))
    return ShortlistQuality(len(texts), scores[0], scores[1], equal, float(np.mean(words)))

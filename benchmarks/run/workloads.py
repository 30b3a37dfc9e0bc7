"""The workloads: random ids of fixed sizes, and real sentences."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from txport.benchmarks.contestants.backend import Task
from txport.benchmarks.report.schema import Workload, fixed_name, of_beam
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.calls.requests import Call, ignore_warnings, length_limit
from txport.runtime.errors import InputError
from txport.runtime.golden import load_golden
from txport.runtime.text.affixes import affixes
from txport.runtime.text.lines import read_lines
from txport.runtime.text.tokenizer import open_tokenizer


@dataclass(frozen=True)
class Work:
    """A workload in the form of the report and in the form for the contestants."""

    workload: Workload
    task: Task


def fixed_work(manifest: Manifest, batch: int, source: int, target: int, beam: int = 1) -> Work:
    """Return a workload of random ids, which are the same in every run.

    Raises:
        InputError: the bundle does not support these sizes.
    """
    limits = manifest.limits
    max_batch = limits.batch // beam
    sizes = (("batch", batch, max_batch), ("source", source, limits.source), ("target", target, limits.target))
    for name, value, limit in sizes:
        if not 1 <= value <= limit:
            raise InputError(
                f"the workload needs --{name} {value}, but this bundle takes 1 to {limit}: choose a value in that range"
            )
    workload = Workload(fixed_name(batch, source, target, beam), "fixed", batch, float(source), target, batch, beam)
    sources = [_random_ids(manifest, source, row) for row in range(batch)]
    return Work(workload, Task(sources, target, True, [], manifest.tokens.pad, beam))


def _random_ids(manifest: Manifest, length: int, seed: int) -> list[int]:
    tokens = manifest.tokens
    special = {tokens.pad, tokens.unk, tokens.bos, tokens.eos}
    # Padding and eos inside a source would change its length for some of the contestants.
    ordinary = [token for token in range(manifest.model.source_vocabulary) if token not in special]
    token_ids = np.random.default_rng(seed).choice(ordinary, size=length - 1)
    return [*token_ids.tolist(), tokens.eos]


def text_work(bundle: Path, manifest: Manifest, file: Path | None, lines: int, beam: int = 1) -> list[Work]:
    """Return a workload of real sentences: the first `lines` lines of `file` that are not blank.

    Without a file, they are the sentences of the bundle's self-check. If it has none, the result is empty.

    Raises:
        InputError: the file cannot be used, or the bundle has no tokenizer.
    """
    if file is not None:
        name = file.name
        sources = _encode(bundle, manifest, first_sentences(file, lines))
    else:
        name = "the bundle's self-check"
        sources = [list(case.source_ids) for case in load_golden(bundle).cases if case.source][:lines]
    if not sources:
        return []
    mean = float(np.mean([len(source) for source in sources]))
    prefix = list(affixes(manifest.tokenizer).target_prefix)
    # Peers have one maximum length for all sentences, so all contestants use that of the longest sentence.
    target = max(length_limit(len(source), len(prefix), manifest.limits.target) for source in sources)
    workload = Workload(f"text: {name}{of_beam(beam)}", "text", None, mean, target, len(sources), beam)
    return [Work(workload, Task(sources, target, False, prefix, manifest.tokens.pad, beam))]


def first_sentences(file: Path, lines: int) -> list[str]:
    """Return the first `lines` lines that are not blank.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has only blank lines.
    """
    sentences = [line for line in read_lines(file) if line.strip()][:lines]
    if not sentences:
        raise InputError(f"{file} has no sentence: give a text file with a sentence a line")
    return sentences


def _encode(bundle: Path, manifest: Manifest, sentences: list[str]) -> list[list[int]]:
    tokenizer = open_tokenizer(bundle, manifest.tokenizer, manifest.vocabularies)
    call = Call.of(tokenizer, manifest.limits, warn=ignore_warnings)
    encoded = [call.sentence(text, f"sentence {number}") for number, text in enumerate(sentences, 1)]
    return [list(sentence.request.source_ids) for sentence in encoded if sentence is not None]

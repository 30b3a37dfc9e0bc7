"""What is measured: random ids of fixed sizes, and real sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from txport.benchmarks.report.schema import Workload
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import InputError
from txport.runtime.golden import load_golden
from txport.runtime.text.affixes import affixes
from txport.runtime.text.tokenizer import open_tokenizer


@dataclass(frozen=True)
class Work:
    """A workload with its ids.

    Attributes:
        workload: what the report says of it.
        sources: ids of each sentence, eos included.
        target: tokens that each sentence makes (fixed), or the most (text).
        prefix: ids that every answer is forced to begin with.
    """

    workload: Workload
    sources: list[list[int]]
    target: int
    prefix: list[int]


def fixed_name(batch: int, source: int, target: int) -> str:
    """For example "8 x 32 -> 64": sentences, source tokens, new tokens."""
    return f"{batch} x {source} -> {target}"


def fixed_work(manifest: Manifest, batch: int, source: int, target: int) -> Work:
    """Random ids, the same in every run.

    Raises:
        InputError: larger than the bundle takes.
    """
    limits = manifest.limits
    given = {"batch": (batch, limits.batch), "source": (source, limits.source), "target": (target, limits.target)}
    for name, (value, most) in given.items():
        if not 1 <= value <= most:
            raise InputError(
                f"the workload asks for --{name} {value}, but this bundle takes 1 to {most}: choose a value in between"
            )
    return Work(
        Workload(fixed_name(batch, source, target), "fixed", batch, float(source), target, batch),
        [_random_ids(manifest, source, row) for row in range(batch)],
        target,
        [],
    )


def _random_ids(manifest: Manifest, length: int, seed: int) -> list[int]:
    tokens = manifest.tokens
    special = {tokens.pad, tokens.unk, tokens.bos, tokens.eos}
    ordinary = [token for token in range(manifest.model.source_vocabulary) if token not in special]
    chosen = np.random.default_rng(seed).choice(ordinary, size=length - 1)
    return [*chosen.tolist(), tokens.eos]


def text_work(bundle: Path, manifest: Manifest, file: Path | None, lines: int) -> Work | None:
    """Real sentences: the first `lines` of `file` that are not empty, else those of the bundle's self-check.

    None if there is no file and the self-check has no sentences.

    Raises:
        InputError: the file cannot be used, or the bundle has no tokenizer.
    """
    if file is None:
        sources = [list(case.source_ids) for case in load_golden(bundle).cases if case.source]
        return _text(manifest, "text: the bundle's self-check", sources[:lines]) if sources else None
    sources = _encode(bundle, manifest, read_lines(file, lines))
    return _text(manifest, f"text: {file.name}", sources)


def _text(manifest: Manifest, name: str, sources: list[list[int]]) -> Work:
    mean = float(np.mean([len(source) for source in sources]))
    target = manifest.limits.target
    prefix = list(affixes(manifest.tokenizer).target_prefix)
    return Work(Workload(name, "text", None, mean, target, len(sources)), sources, target, prefix)


def read_lines(file: Path, lines: int) -> list[str]:
    """The first `lines` lines that hold more than spaces.

    Raises:
        InputError: the file cannot be read, is not UTF-8, or has no such line.
    """
    try:
        text = file.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}): give a text file with a sentence a line"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 ({error}): convert it first") from None
    found = [line for line in text.split("\n") if line.strip()][:lines]
    if not found:
        raise InputError(f"{file} has no sentence: give a text file with a sentence a line")
    return found


def _encode(bundle: Path, manifest: Manifest, sentences: Sequence[str]) -> list[list[int]]:
    model = manifest.model
    tokenizer = open_tokenizer(
        bundle, manifest.tokenizer, manifest.tokens.unk, model.source_vocabulary, model.target_vocabulary
    )
    sources = []
    for sentence in sentences:
        ids, around = tokenizer.encode_source(sentence)
        sources.append(around.around(ids, manifest.limits.source))
    return sources

"""What guided attention does for alignments: `python -m txport.benchmarks.studies.guided_attention -o build/guided`.

Models of the built-in corpus, which differ in `training.guided_attention` only, say what each spoken digit comes from.
The truth is known where a sentence's spoken digits are its written ones in order, all of them: "at gate 4 0 7 1" is "at
gate four oh seven one", and "zero" and "oh" are 0. Digits have spaces around them here, so that they are words and the
corpus' alignments can name them; those of other words are left open.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
from txport.benchmarks.report.tables import markdown_table
from txport.benchmarks.studies.trainings import spread, trained
from txport.models.checkpoint import Checkpoint, load_checkpoint
from txport.models.config import Heads
from txport.runtime.entry import run_command
from txport.runtime.text.alignment import align_tokens, align_words, averaged, stripped, words_of
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.training.corpora import Pair
from txport.training.guidance.guided_attention import default_heads
from txport.training.recipe import from_table
from txport.training.spoken import corpus as spoken

NAMES = "zero one two three four five six seven eight nine".split()
SPOKEN = {"oh": 0, **{name: digit for digit, name in enumerate(NAMES)}}
GUIDES = ("none", "diagonal", "alignments")
ALL, ONE = "none: the average of the last layers", "none: the head that the others guide"
Links = list[tuple[int, int]]  # source word, target word


def spaced_digits(text: str) -> str:
    """Each digit as a word."""
    return " ".join(re.sub(r"([0-9])", r" \1 ", text).split())


def certain_links(source: str, target: str) -> Links:
    """Words of a pair that are surely aligned: its digits, if these are all spoken alone and in order."""
    written = [position for position, word in enumerate(source.split()) if word.isdecimal()]
    said = [position for position, word in enumerate(target.split()) if word in SPOKEN]
    values = [int(source.split()[i]) for i in written], [SPOKEN[target.split()[i]] for i in said]
    return list(zip(written, said, strict=True)) if values[0] == values[1] else []


@dataclass(frozen=True)
class Figures:
    """Of one model.

    Attributes:
        error: the alignment error rate of the spoken digits (Och and Ney 2003, section 2.3), all links being sure:
            1 - 2 |made and true| / (|made| + |true|).
        exact: of the test, the share of translations that are right.
    """

    error: float
    exact: float


def measure(checkpoint: Checkpoint, pairs: Sequence[Pair], exact: float, heads: Heads) -> Figures:
    """How well heads of a model align the digits of given translations, by the rules of `Translator`."""
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert isinstance(tokenizer, TextTokenizer)
    right = true = found = 0
    for pair in pairs:
        links = certain_links(*pair)
        digits = {target for _, target in links}
        made = [link for link in _aligned(checkpoint, tokenizer, pair, heads) if link[1] in digits]
        right += len(set(made) & set(links))
        true, found = true + len(links), found + len(made)
    return Figures(1 - 2 * right / (true + found), exact)


def _aligned(checkpoint: Checkpoint, tokenizer: TextTokenizer, pair: Pair, heads: Heads) -> Links:
    """Links of words that a model gives between a source and its reference."""
    source, spans, around = tokenizer.locate_source(pair[0])
    target, ids = tokenizer.encode_prefix(pair[1]), around.wrap(source)
    with torch.no_grad():
        lengths = torch.tensor([len(ids)]), torch.tensor([len(target)])
        maps = checkpoint.model.attention_maps(torch.tensor([ids]), lengths[0], torch.tensor([target]), lengths[1])
    weights = averaged(maps.cross[:, 0].numpy(), heads)
    tokens = align_tokens(weights, range(len(source)), range(len(target)))
    spans = [stripped(span, pair[0]) for span in spans]
    made = [stripped(span, pair[1]) for span in tokenizer.prefix_spans(pair[1])]
    return align_words(tokens, spans, made, words_of(pair[0]), words_of(pair[1]))


def write_corpus(directory: Path, train_pairs: int, test_pairs: int) -> list[Pair]:
    """Files `train`, `test` and `validation` with the endings written, spoken and align.

    Returns:
        test pairs with several digits whose alignment is certain: one digit alone is found by its form.
    """
    splits: dict[spoken.Split, int] = {"train": train_pairs, "validation": 200, "test": test_pairs}
    directory.mkdir(parents=True, exist_ok=True)
    for split, count in splits.items():
        pairs = [(spaced_digits(source), target) for source, target in islice(spoken.sentences(1, split), count)]
        alignments = (" ".join(f"{i}-{j}" for i, j in certain_links(*pair)) for pair in pairs)
        for ending, lines in (("written", [s for s, _ in pairs]), ("spoken", [t for _, t in pairs])):
            (directory / f"{split}.{ending}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        (directory / f"{split}.align").write_text("".join(f"{line}\n" for line in alignments), encoding="utf-8")
    return [pair for pair in pairs if len(certain_links(*pair)) > 1]


def runs(directory: Path, steps: int, weight: float, pairs: Sequence[Pair], seed: int) -> Iterator[tuple[str, Figures]]:
    """Train and measure a model for each of `GUIDES`; the one without guidance by all its heads, and by one alone."""
    for guide in GUIDES:
        corpus = {"kind": "parallel", "source_language": "written", "target_language": "spoken"}
        corpus |= {"validation": "validation", "test": "test"}
        if guide == "alignments":
            corpus["alignments"] = "align"
        training: dict[str, Any] = {"seed": seed, "max_steps": steps, "batch_tokens": 1024, "max_length": 128}
        training |= {"validation_sentences": 50, "guided_attention": guide, "guided_weight": weight}
        tables = {"tokenizer": {"vocabulary": 800, "lower_case": True}, "model": {"preset": "tiny", "dropout": 0.0}}
        recipe = from_table({"corpus": corpus, "training": training, **tables}, "of the study")
        output = directory / f"{guide}-{seed}"
        exact = trained(recipe, output, directory / "corpus").test.exact
        checkpoint = load_checkpoint(output)
        heads = checkpoint.config.alignment_heads
        yield (guide if heads else ALL), measure(checkpoint, pairs, exact, heads)
        if not heads:
            one = default_heads(checkpoint.config.decoder_layers)
            yield ONE, measure(checkpoint, pairs, exact, one)


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory for corpus and models.")
@click.option("--steps", type=click.IntRange(1), default=1500, show_default=True, help="Of each training.")
@click.option("--pairs", type=click.IntRange(1), default=20000, show_default=True, help="Of training.")
@click.option(
    "--test", type=click.IntRange(1), default=2000, show_default=True,
    help="Pairs to translate and, where it is certain, to align.",
)  # fmt: skip
@click.option("--weight", type=click.FloatRange(0), default=1.0, show_default=True, help="training.guided_weight.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Trainings of each kind.")
def main(output: Path, steps: int, pairs: int, test: int, weight: float, seeds: int) -> None:
    """Train without and with guided attention and print how well each model aligns spoken digits.

    Trainings that OUTPUT already has are not made again.
    """
    place = output / f"{pairs}-{test}"  # the corpus decides what is in it
    measured = write_corpus(place / "corpus", pairs, test)
    found: dict[str, list[Figures]] = {}
    for seed in range(1, seeds + 1):
        for guide, figures in runs(place, steps, weight, measured, seed):
            found.setdefault(guide, []).append(figures)
            click.echo(f"{guide}, seed {seed}: {figures}", err=True)
    click.echo(f"{sum(len(certain_links(*pair)) for pair in measured)} digits of {len(measured)} sentences")
    rows = [
        [guide, *(spread([getattr(one, name) for one in each], "{:.1%}".format) for name in ("error", "exact"))]
        for guide, each in found.items()
    ]
    heads = ["guided_attention", "alignment error", "exact match"]
    click.echo("\n".join(markdown_table(heads, rows, left=heads[:1])))


if __name__ == "__main__":
    run_command("txport.benchmarks.studies.guided_attention", extra="train")

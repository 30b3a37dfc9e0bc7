"""Sets of sentences and references to evaluate on: files, test splits of recipes, or what a checkpoint carries."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.runtime.bundle.kinds import check_model
from txport.runtime.errors import InputError
from txport.training.corpora import Pair, load_test, read_parallel
from txport.training.recipe import read

_WAYS = "name a test set by --source and --reference, or by --recipe"


# Of a checkpoint and an engine.
NO_ENGINE = "{} is a checkpoint, which PyTorch runs, not engine {}: leave out --engine"


@dataclass(frozen=True)
class EvaluationSet:
    """Pairs of a sentence and its reference, and the name that the report gives them."""

    name: str
    pairs: Sequence[Pair]


def evaluation_sets(
    model: Path, sources: Sequence[Path], references: Sequence[Path], recipes: Sequence[str], data: Path
) -> list[EvaluationSet]:
    """Read the sets that were asked for; without any, the sentences that the checkpoint `model` carries.

    Args:
        model: a bundle or a checkpoint.
        sources, references: files, line n of one belonging to line n of the other.
        recipes: names or files of recipes.
        data: directory of the files that recipes name.

    Raises:
        InputError: files are not in pairs, a set is named twice, a file cannot be read, or there is nothing to evaluate
            on.
    """
    if len(sources) != len(references):
        raise InputError("--source and --reference belong together: give both, as often as there are test sets")
    files = zip(sources, references, strict=True)
    sets = [EvaluationSet(str(source), read_parallel(source, reference)) for source, reference in files]
    for name in recipes:
        recipe = read(name)
        sets.append(EvaluationSet(f"the test split of {name}", load_test(recipe.corpus, data, recipe.tokenizer)))
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise InputError("a test set is given twice: name each source and each recipe once")
    return sets or [_own(model)]


def _own(model: Path) -> EvaluationSet:
    check_model(model)
    sentences = model / "sentences.txt"
    references = model / "references.txt"
    if not (sentences.exists() and references.exists()):
        raise InputError(f"{model} carries no sentences with references: {_WAYS}")
    return EvaluationSet(f"its own {sentences}", read_parallel(sentences, references))

"""Sets of sentences and references for evaluation: files, test splits of recipes, or sentences in a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.runtime.bundle.kinds import check_model
from txport.runtime.errors import InputError
from txport.training.corpora import Pair, load_test, read_parallel
from txport.training.recipe import read

_REMEDY = "name a test set by --source and --reference, or by --recipe"


# Message with a checkpoint and an engine.
NO_ENGINE = "{} is a checkpoint, which PyTorch runs, not engine {}: leave out --engine"


@dataclass(frozen=True)
class EvaluationSet:
    """Pairs of sentence and reference, and the name of the set in reports."""

    name: str
    pairs: Sequence[Pair]


def evaluation_sets(
    model: Path, sources: Sequence[Path], references: Sequence[Path], recipes: Sequence[str], data: Path
) -> list[EvaluationSet]:
    """Read the given sets; by default, the sentences in the checkpoint `model`.

    Args:
        model: a bundle or a checkpoint.
        sources, references: pairs of files, line by line.
        recipes: names or files of recipes.
        data: base directory of files in recipes.

    Raises:
        InputError: files are not in pairs, a set is given twice, a file cannot be read, or there is nothing to
            evaluate.
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
    return sets or [_model_set(model)]


def _model_set(model: Path) -> EvaluationSet:
    check_model(model)
    sentences = model / "sentences.txt"
    references = model / "references.txt"
    if not (sentences.exists() and references.exists()):
        raise InputError(f"{model} carries no sentences with references: {_REMEDY}")
    return EvaluationSet(f"its own {sentences}", read_parallel(sentences, references))

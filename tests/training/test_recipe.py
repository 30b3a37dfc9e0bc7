"""Recipes: what is read, what is refused and how it is said."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from txport.models.config import preset
from txport.runtime.errors import InputError
from txport.training import recipe as recipes
from txport.training.options import BuiltinOptions
from txport.training.recipe import RECIPES, from_table, read

BASE = '[corpus]\nkind = "builtin"\n[training]\nmax_steps = 5\n'
TABLE = '[training]\nmax_steps = 5\n[corpus]\nkind = "table"\n'


@pytest.mark.parametrize("name", sorted(file.stem for file in RECIPES.glob("*.toml")))
def test_shipped_recipes_are_valid_and_survive_json(name: str) -> None:
    recipe = read(name)
    assert from_table(recipe.to_json(), "x") == recipe


def test_overrides_replace_values() -> None:
    recipe = read("tiny", ["training.seed=7", "corpus.train = 11", "model.norm=post", 'training.devices="2"'])
    assert recipe.training.seed == 7 and recipe.training.devices == "2" and recipe.model["norm"] == "post"
    assert isinstance(recipe.corpus, BuiltinOptions) and recipe.corpus.train == 11


def test_defaults(write: Callable[..., Path]) -> None:
    recipe = read(str(write("mine.toml", BASE)))
    assert recipe.training.label_smoothing == 0.1 and recipe.model == {}
    assert recipe.training.warmup_steps is None and recipe.tokenizer.vocabulary is None, "chosen from the corpus"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[corpus", "is not TOML"),
        (b"\xff", "is not TOML"),
        ("", r"\[corpus\] kind is missing: set it to one of builtin, names, parallel, table, datasets"),
        ('[corpus]\nkind = "tabel"\n', "corpus.kind is 'tabel': did you mean table?"),
        ("[corpus]\nkind = 3\n", "corpus.kind is 3: it must be one of builtin, names, parallel, table, datasets"),
        (BASE + "[trainig]\n", "unknown section trainig: did you mean training?"),
        (BASE + "max_step = 3\n", "training has the unknown field 'max_step': did you mean max_steps?"),
        (BASE + "[other]\n", "unknown section other: it may have corpus, tokenizer, model, training"),
        ("training = 3\n" + BASE.partition("[training]")[0], "training must be a table"),
        (BASE + "xyz = 1\n", "training has the unknown field 'xyz': it may have seed, max_steps"),
        (BASE + 'seed = "1"\n', "training.seed must be an integer, not a string"),
        (BASE + "seed = true\n", "training.seed must be an integer, not true or false"),
        (BASE + "seed = -1\n", "training.seed is -1, but must be at least 0"),
        (BASE + "seed = 1979-05-27\n", "training.seed must be an integer, not date"),
        (BASE + "learning_rate = 0\n", "training.learning_rate is 0.0, but must be above 0"),
        (BASE + "learning_rate = nan\n", "training.learning_rate is nan, but must be above 0"),
        (BASE + "label_smoothing = 1\n", "training.label_smoothing is 1.0, but must be below 1"),
        (BASE + 'precision = "8"\n', "training.precision is '8', not one of 32-true, bf16-mixed, 16-mixed"),
        (BASE + "batch_tokens = 100\n", r"batch_tokens \(100\) must be at least training.max_length \(256\)"),
        (BASE.replace("max_steps = 5", ""), "nothing ends the run"),
        (
            TABLE + "target_column = 1\n",
            "corpus.target_column are both 1: source and target must differ",
        ),
        (TABLE.replace("table", "parallel") + 'target_language = "en"\n', "corpus.target_language are both 'en'"),
        (BASE + "[tokenizer]\nminimum_count = 2\n", "minimum_count is for algorithm word, not for bpe: leave it out"),
        (BASE + '[tokenizer]\nalgorithm = "words"\n', "algorithm is 'words', not one of bpe, unigram, word, char"),
        (BASE + 'schedule = "cosine"\n', "schedule is 'cosine', not one of inverse_sqrt, constant"),
        (BASE + 'keep = "average"\naverage = 0.9\n', "keep is average and training.average is a moving one"),
        (BASE + 'keep = "average"\naverage_last = 1\n', "average_last is 1, but must be at least 2"),
        (BASE + "[tokenizer]\njoint = false\n", "need model.share_embeddings = false"),
        (BASE + '[model]\npreset = "huge"\n', "no preset 'huge'"),
        (BASE + "[model]\nlayers = 3\n", "model config has the unknown field 'layers': did you mean"),
        (BASE + "[model]\nd_model = 33\n", r"\[model\]: .*d_model = 33"),
        (BASE + '[model]\nd_model = "big"\n', "d_model must be an integer, not a string"),
        (BASE + "[model]\ntarget_vocabulary = 8\n", "model.target_vocabulary comes from the tokenizer"),
    ],
)
def test_bad_recipes(write: Callable[..., Path], text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(str(write("mine.toml", text)))


def test_unknown_recipe_names_those_that_exist() -> None:
    with pytest.raises(
        InputError, match=r"recipe nonsense cannot be read .* one of demo, digits, eng_fra, multi30k, names, tiny"
    ):
        read("nonsense")


@pytest.mark.parametrize("override", ["seed=1", "training.seed", "=3", "training.=3"])
def test_bad_override(override: str) -> None:
    with pytest.raises(InputError, match="is not of the form section.key=value"):
        read("tiny", [override])


def test_every_option_says_what_it_is() -> None:
    for kind in (*recipes.CORPORA.values(), recipes.TokenizerOptions, recipes.TrainingOptions):
        for field in dataclasses.fields(kind):
            assert re.search(r"\w", field.metadata["help"]), f"{kind.__name__}.{field.name}"


def test_the_starter_is_a_recipe_of_defaults(write: Callable[..., Path]) -> None:
    recipe = read(str(write("starter.toml", recipes.starter())))
    assert recipe == read(str(write("least.toml", '[corpus]\nkind = "parallel"\n[training]\nmax_minutes = 30\n')))


def test_every_value_of_the_starter_is_the_default(write: Callable[..., Path]) -> None:
    """Without the signs of comments, and with one kind of corpus, it is the same recipe, every key written out."""
    head, *corpora, rest = re.split(r"\n# With kind = |\n(?=\[tokenizer\])", recipes.starter())
    assert [text.partition("\n")[0] for text in corpora] == [
        "parallel",
        "builtin",
        "names",
        "table",
        "datasets",
        "shards",
        "digits",
        "features",
    ]
    vectors = {"source": "features", "feature_size": 40}
    for text in corpora:
        kind, _, keys = text.partition("\n")
        whole = re.sub(r"^# (\w+ = *[^# ])", r"\1", f"{head}\n{keys}\n{rest}", flags=re.MULTILINE)
        added = vectors if kind in ("digits", "features") else {}
        recipe = read(
            str(write("whole.toml", whole)),
            [f"corpus.kind={kind}", *(f"model.{key}={value}" for key, value in added.items())],
        )
        fields = [
            field for options in (recipe.corpus, recipe.tokenizer, recipe.training) for field in fields_of(options)
        ]
        assert {name: value for name, value, default in fields if value != default} == {"max_minutes": 30}
        assert all(re.search(rf"^#? ?{name} =", f"{keys}\n{rest}", re.MULTILINE) for name, _, _ in fields)
        model = {key: value for key, value in recipe.model.items() if key not in added}
        assert preset(model.pop("preset"), **model) == preset("small")


def fields_of(options: object) -> list[tuple[str, object, object]]:
    """Name, value and default of each."""
    found = dataclasses.fields(options)  # type: ignore[arg-type]
    return [(field.name, getattr(options, field.name), field.default) for field in found]


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(BASE + "seed = 5\n", encoding="utf-8-sig")
    assert read(str(file)).training.seed == 5

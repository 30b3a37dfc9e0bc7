"""Which file a setting of `generate` comes from, what it forces, and settings of wrong types."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from foreign_models import MADE, changed_json, generate, greedy, import_here, random_sources, write_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_marian import EOS, tiny_marian
from txport.models.importers.choice import import_model
from txport.models.importers.imported import Imported, ImportOptions
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.strict_json import decode, encode, parse
from txport.runtime.errors import TxportError

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

SETTINGS = {
    "num_beams": 3,
    "no_repeat_ngram_size": 2,
    "min_length": 9,
    "bad_words_ids": [[7]],
    "forced_bos_token_id": 9,
}


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("marian") / "theirs"
    tiny_marian(directory)
    return directory


def copied(source: Path, target: Path, config: dict[str, Any], generation: dict[str, Any] | None) -> Path:
    """The model with other fields of config.json, and another generation_config.json, None for no such file."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    changed_json(target / "config.json", **config)
    (target / "generation_config.json").unlink()
    if generation is not None:
        write_json(target / "generation_config.json", generation)
    return target


def understood(directory: Path, **options: Any) -> Imported:
    return import_model(str(directory), None, ImportOptions(tokenizer=False, **options))


IDS = {"eos_token_id": EOS, "pad_token_id": 60, "decoder_start_token_id": 60}


@pytest.mark.parametrize(
    ("generation", "counts"),
    [(None, True), (IDS, False), ({**IDS, "_from_model_config": True}, True), ({**IDS, "num_beams": 1}, False)],
    ids=["no file", "file", "file from the config", "file with another setting"],
)
def test_config_json_counts_only_without_the_other_file(
    marian: Path, generation: dict[str, Any] | None, counts: bool, tmp_path: Path
) -> None:
    directory = copied(marian, tmp_path / "theirs", SETTINGS, generation)
    found = understood(directory)
    expected = Generation(beam=3, no_repeat_ngram=2, min_length=8, forced_end=EOS) if counts else Generation()
    assert found.generation == expected
    assert found.tokenizer.description.target_prefix == ((9,) if counts else ())
    assert any("banned ids" in note for note in found.notes) == counts
    if generation == IDS:  # greedy ids: nothing is banned or forced, as in Hugging Face
        checkpoint = import_here(directory, tmp_path / "checkpoint", tokenizer=False)
        model = transformers.MarianMTModel.from_pretrained(directory).eval()
        sources = random_sources(range(2, 60), [EOS])
        assert greedy(checkpoint, sources) == generate(model, sources)


def test_a_start_that_only_the_other_file_states(marian: Path, tmp_path: Path) -> None:
    """Ids that the file does not state are the model's all the same; `generate` starts from bos before config.json."""
    directory = copied(marian, tmp_path / "theirs", {}, {"eos_token_id": EOS, "bos_token_id": 5})
    config = understood(directory).config
    assert (config.bos_id, config.eos_id, config.pad_id) == (5, EOS, 60)


@pytest.mark.parametrize(
    ("config", "generation", "prefix"),
    [
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 11}, None, (11,)),
        ({"force_bos_token_to_be_generated": False, "bos_token_id": 11}, None, ()),
        ({"force_bos_token_to_be_generated": 1, "bos_token_id": 11}, None, (11,)),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 11, "forced_bos_token_id": 12}, None, (11,)),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": None, "forced_bos_token_id": 12}, None, (12,)),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 11}, IDS, ()),
        ({}, {**IDS, "forced_bos_token_id": 44}, (44,)),
        ({}, {**IDS, "forced_bos_token_id": [44]}, (44,)),
        ({}, {**IDS, "forced_bos_token_id": []}, ()),
        ({"forced_bos_token_id": [44]}, None, (44,)),
    ],
)
def test_what_answers_are_forced_to_begin_with(
    marian: Path, config: dict[str, Any], generation: dict[str, Any] | None, prefix: tuple[int, ...], tmp_path: Path
) -> None:
    directory = copied(marian, tmp_path / "theirs", config, generation)
    assert understood(directory).tokenizer.description.target_prefix == prefix
    theirs = transformers.MarianMTModel.from_pretrained(directory).generation_config.forced_bos_token_id
    assert (tuple(theirs) if isinstance(theirs, list) else (() if theirs is None else (theirs,))) == prefix


@pytest.mark.parametrize("family", ["marian", "t5", "pegasus", "bart"])
@pytest.mark.parametrize("tokenizer", [True, False])
def test_every_family_forces_a_beginning(family: str, tokenizer: bool, tmp_path: Path) -> None:
    """As `generate` does, by greedy ids."""
    import added_tokens

    added_tokens.saved(family, tmp_path / "theirs")
    changed_json(tmp_path / "theirs" / "generation_config.json", forced_bos_token_id=[44])
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "checkpoint", tokenizer=tokenizer)
    assert checkpoint.tokenizer.target_prefix == (44,)
    changed_json(tmp_path / "theirs" / "generation_config.json", forced_bos_token_id=44)
    model = getattr(transformers, f"{added_tokens.FAMILIES[family][1]}{'Model' if family == 'marian' else ''}")
    theirs = model.from_pretrained(tmp_path / "theirs").eval()
    sources = [[5, 6, 7, checkpoint.config.eos_id], [8, 9, checkpoint.config.eos_id]]
    found = greedy(checkpoint, sources, (44,))
    assert [row[:MADE] for row in found] == generate(theirs, sources)


WRONG: list[tuple[str, Any]] = [
    ("bad_words_ids", [5]), ("bad_words_ids", "x"), ("bad_words_ids", [["5"]]), ("bad_words_ids", [[]]),
    ("suppress_tokens", 5), ("suppress_tokens", ["5"]), ("begin_suppress_tokens", [[1]]),
    ("begin_suppress_tokens", 1.0),
    ("eos_token_id", [2, "3"]), ("eos_token_id", []), ("early_stopping", 1), ("early_stopping", "x"),
    ("length_penalty", math.nan), ("length_penalty", math.inf), ("repetition_penalty", -math.inf), ("num_beams", 0),
    ("num_beams", 10**30), ("num_beams", 2.0), ("min_length", -1), ("forced_bos_token_id", [1, 2]),
    ("forced_bos_token_id", 61), ("forced_bos_token_id", True), ("forced_bos_token_id", -1),
    ("forced_eos_token_id", "2"), ("top_k", "5"), ("suppress_tokens", [1 << 60]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}-{value}" for name, value in WRONG])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_settings_of_wrong_types_are_refused(marian: Path, name: str, value: Any, file: str, tmp_path: Path) -> None:
    """One sentence with the file and the name, and exit code 2."""
    from txport.models.importers.command import main

    fields = {name: value, "do_sample": True}
    own = file == "generation_config.json"
    directory = copied(marian, tmp_path / "theirs", {} if own else fields, {**IDS, **fields} if own else None)
    with pytest.raises(TxportError, match=name) as refused:
        understood(directory)
    assert "\n" not in str(refused.value) and "config.json" in str(refused.value)
    done = CliRunner().invoke(main, [str(directory), "-o", str(tmp_path / "out"), "--no-tokenizer"])
    assert isinstance(done.exception, TxportError) and not (tmp_path / "out").exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.just(10**400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = (
    *("num_beams length_penalty early_stopping repetition_penalty no_repeat_ngram_size bad_words_ids top_k").split(),
    *("suppress_tokens begin_suppress_tokens eos_token_id pad_token_id bos_token_id decoder_start_token_id").split(),
    *(
        "forced_eos_token_id forced_bos_token_id renormalize_logits do_sample temperature top_p min_p min_length"
    ).split(),
    *("max_length max_new_tokens min_new_tokens sequence_bias num_beam_groups _from_model_config").split(),
    *("force_bos_token_to_be_generated dropout activation_function model_type vocab_size d_model").split(),
)


@given(
    st.sampled_from(["generation_config.json", "config.json"]),
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_in_any_field(marian: Path, file: str, fields: dict[str, Any]) -> None:
    """A model is understood, and its settings are those of a bundle, or it is refused by a sentence."""
    before = (marian / file).read_text()
    try:
        write_json(marian / file, {**json.loads(before), **fields})
        found = encode(understood(marian).generation)
    except TxportError as error:
        assert "\n" not in str(error)
        return
    finally:
        (marian / file).write_text(before)
    assert decode(Generation, parse(json.dumps(found).encode(), "it"), "it") is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forced_eos_token_id", 10**6),
        ("begin_suppress_tokens", [10**6]),
        ("bad_words_ids", [[5, 10**6]]),
        ("eos_token_id", [EOS, 10**6]),
        ("repetition_penalty", 0.0),
        ("temperature", 0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("no_repeat_ngram_size", -1),
    ],
)
def test_values_that_generate_does_not_take(marian: Path, name: str, value: Any, tmp_path: Path) -> None:
    directory = copied(marian, tmp_path / "theirs", {}, {**IDS, "do_sample": True, name: value})
    with pytest.raises(TxportError, match=f"generation_config.json: {name} (has the id|must be a number)"):
        understood(directory)

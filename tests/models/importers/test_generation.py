"""Searches of imported models against Hugging Face's `generate`: hypotheses, scores, and the model's own settings."""

import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import WHOLE_GRID, changed_json, import_here, padded, random_sources, shake
from tiny_marian import SIZES, tiny_marian
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.engines.native import missing
from txport.runtime.errors import InputError
from txport.runtime.translator import Translator

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

BEAM, INPUTS, LONGEST = 4, 20, 16
# One of each with each of the others, as pairs: TXPORT_WHOLE_GRID=1 tries the whole grid.
GRID = {
    "early_stopping": (False, True, "never"),
    "length_penalty": (0.0, 1.0, 2.0, -1.0),
    "renormalize_logits": (True, False),
    "rule": (
        {},
        {"min_new_tokens": 6},
        {"no_repeat_ngram_size": 2},
        {"repetition_penalty": 1.4},
        {"forced_eos_token_id": True},
        {"bad_words_ids": [[5, 6], [7]], "suppress_tokens": [9, 10], "begin_suppress_tokens": [11, 12]},
    ),
}
OUR_NAMES = {
    "renormalize_logits": "renormalize",
    "min_new_tokens": "min_length",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "forced_eos_token_id": "forced_end",
    "bad_words_ids": "bad_words",
    "suppress_tokens": "suppress",
    "begin_suppress_tokens": "begin_suppress",
}
FAMILIES = {"m2m100": "M2M100", "bart": "Bart", "mbart": "MBart"}
# Their sizes by other names: pad starts an answer, and nothing but the id tells it from other tokens.
OTHERS = {"t5": "T5", "pegasus": "Pegasus"}
ALL = ("marian", *FAMILIES, *OTHERS)


def make(directory: Path, name: str) -> Any:
    """A model with random weights, saved by `save_pretrained`."""
    if name == "marian":
        return tiny_marian(directory, seed=4)
    if name in OTHERS:
        return make_other(directory, name)
    family, special = FAMILIES[name], {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0}
    sizes = {**SIZES, "activation_function": "relu", "decoder_start_token_id": 2, "forced_eos_token_id": None}
    config = getattr(transformers, f"{family}Config")(vocab_size=60, **special, **sizes)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    shake(model, 4, scale=1.6)
    for table in {model.get_encoder().embed_tokens, model.get_decoder().embed_tokens}:
        table.weight.data[1] = 0
    model.lm_head.weight.data[2] *= 2
    model.tie_weights()
    model.save_pretrained(directory)
    return model


def make_other(directory: Path, name: str) -> Any:
    """A T5 with gates, or a Pegasus, likewise."""
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "feed_forward_proj": "gated-gelu"}
    sizes = t5 if name == "t5" else SIZES
    config = getattr(transformers, f"{OTHERS[name]}Config")(vocab_size=60, **special, **sizes)
    model = getattr(transformers, f"{OTHERS[name]}ForConditionalGeneration")(config).eval()
    shake(model, 4, scale=1.6)
    model.lm_head.weight.data[1] *= 2
    model.tie_weights()
    model.save_pretrained(directory)
    return model


class Imported:
    """A Hugging Face model and the bundle made of it, on each engine."""

    def __init__(self, name: str, directory: Path) -> None:
        source = directory / name
        self.name = name
        self.model = make(source, name)
        self.config = self.model.config
        import_here(source, directory / "checkpoint", tokenizer=False)
        export_bundle(directory / "checkpoint", directory / "bundle", ExportOptions(verify=False))
        engines = ["ort"] if missing() else ["ort", "fused"]
        self.translators = {engine: Translator(directory / "bundle", "cpu", engine) for engine in engines}
        ids = [token for token in range(4, 55) if token != self.config.pad_token_id]
        self.sources = random_sources(ids, [self.config.eos_token_id])[:INPUTS]

    def generate(self, **settings: Any) -> tuple[list[list[int]], list[float]]:
        """Ids to the first end, without the start token, and scores, best first for each source."""
        ids, lengths = padded(self.sources, self.config.pad_token_id)
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        banned = [[token] for token in [self.config.pad_token_id] if self.config.model_type == "marian"]
        settings["bad_words_ids"] = [*banned, *settings.pop("bad_words_ids", [])] or None
        made = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_length=LONGEST + 1,
            return_dict_in_generate=True,
            output_scores=True,
            **{"forced_eos_token_id": None, "forced_bos_token_id": None, **settings},
        )
        rows = [row[1:] for row in made.sequences.tolist()]
        eos = self.config.eos_token_id
        rows = [row[: row.index(eos) + 1] if eos in row else row[:LONGEST] for row in rows]
        return rows, made.sequences_scores.tolist()


@pytest.fixture(scope="module", params=ALL)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    threads = torch.get_num_threads()
    yield Imported(request.param, tmp_path_factory.mktemp(request.param))
    torch.set_num_threads(threads)


@functools.cache
def pairs() -> list[dict[str, Any]]:
    """Combinations in which each two values of different settings meet at least once, and each with each family."""
    wanted = set[Any]().union(*map(_met, whole()))
    chosen = []
    while wanted:
        best = max(whole(), key=lambda each: len(wanted & _met(each)))
        wanted -= _met(best)
        chosen.append(best)
    return chosen


def whole() -> list[dict[str, Any]]:
    """All combinations.

    Marian's pad is banned in the weights, so that it is left out of the sum of probabilities: the same only where they
    are normalised again, and no penalty acts on them before.
    """
    values = (dict(zip(("family", *GRID), each, strict=True)) for each in itertools.product(ALL, *GRID.values()))
    penalty = "repetition_penalty"
    return [
        each for each in values
        if each["family"] != "marian" or (each["renormalize_logits"] and penalty not in each["rule"])
    ]  # fmt: skip


def _met(values: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations([(name, str(value)) for name, value in values.items()], 2))


def test_hypotheses_are_those_of_generate(imported: Imported) -> None:
    for values in whole() if WHOLE_GRID else pairs():
        settings = {**values, **values["rule"]}
        del settings["rule"]
        if settings.pop("family") != imported.name:
            continue
        if settings.get("forced_eos_token_id"):
            settings["forced_eos_token_id"] = imported.config.eos_token_id
        expected = imported.generate(num_beams=BEAM, num_return_sequences=BEAM, do_sample=False, **settings)
        ours = {OUR_NAMES.get(name, name): value for name, value in settings.items()}
        for translator in imported.translators.values():
            _check(translator, imported.sources, ours, *expected)


def _check(
    translator: Translator,
    sources: Sequence[list[int]],
    ours: dict[str, Any],
    rows: list[list[int]],
    scores: list[float],
) -> None:
    made = translator.translate_ids(sources, beam=BEAM, n_best=BEAM, max_length=LONGEST, **ours)
    hypotheses = [each for translation in made for each in translation.hypotheses]
    assert [each.ids for each in hypotheses] == rows, ours
    # Within 1e-4 a token: sums that are not divided by their length are larger, and Hugging Face's are of float32.
    for each, score in zip(hypotheses, scores, strict=True):
        tokens = len(each.ids) ** max(0.0, 1 - ours["length_penalty"])
        assert each.score == pytest.approx(score, abs=1e-4 * tokens), ours


@pytest.mark.parametrize("family", ["bart-large-cnn", "opus-mt", "mbart-50", "pegasus-xsum", "t5"])
def test_a_model_is_searched_by_its_own_settings(family: str, tmp_path: Path) -> None:
    """Settings as the files of these models have them, but for lengths."""
    source = tmp_path / "source"
    kinds = {"bart-large-cnn": "bart", "opus-mt": "marian", "mbart-50": "mbart", "pegasus-xsum": "pegasus", "t5": "t5"}
    model = make(source, kinds[family])
    settings: dict[str, Any] = {
        "bart-large-cnn": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
                           "min_length": 6, "max_length": 15, "forced_eos_token_id": 2},
        "opus-mt": {"num_beams": 6, "max_length": 14, "renormalize_logits": True, "forced_eos_token_id": 0,
                    "bad_words_ids": [[model.config.pad_token_id]]},
        "pegasus-xsum": {"num_beams": 8, "length_penalty": 0.6, "max_length": 14, "forced_eos_token_id": 1},
        "t5": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
               "min_length": 5, "max_length": 15},
        "mbart-50": {"num_beams": 5, "early_stopping": True, "max_length": 12, "forced_eos_token_id": 2},
    }[family]  # fmt: skip
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(source)
    import_here(source, tmp_path / "checkpoint", tokenizer=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False))
    eos, pad_id = model.config.eos_token_id, model.config.pad_token_id
    sources = random_sources([token for token in range(4, 55) if token != pad_id], [eos])[:INPUTS]
    ids, lengths = padded(sources, pad_id)
    rows = model.generate(input_ids=ids, attention_mask=(torch.arange(ids.shape[1])[None] < lengths[:, None]).long())
    expected = [row[1:] for row in rows.tolist()]
    translator = Translator(tmp_path / "bundle", "cpu")
    for made, row in zip(translator.translate_ids(sources, generation="model"), expected, strict=True):
        end = row.index(eos) + 1 if eos in row else len(row)
        assert made.ids == row[:end]


def test_settings_that_the_search_does_not_have_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    tiny_marian(source)
    changed_json(source / "generation_config.json", encoder_no_repeat_ngram_size=3)
    import_here(source, tmp_path / "checkpoint", tokenizer=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(verify=False))
    translator = Translator(tmp_path / "bundle", "cpu")
    with pytest.raises(InputError, match="not supported: encoder_no_repeat_ngram_size = 3"):
        translator.translate_ids([[5, 0]], generation="model")
    assert translator.translate_ids([[5, 0]])


def test_notes_name_the_settings(tmp_path: Path) -> None:
    tiny_marian(tmp_path / "source")
    changed_json(tmp_path / "source" / "generation_config.json", num_beams=6, typical_p=0.9)
    notes = " | ".join(import_model(str(tmp_path / "source"), None, ImportOptions(tokenizer=False)).notes)
    assert "beam 6" in notes and "typical_p = 0.9" in notes
    assert json.loads((tmp_path / "source" / "config.json").read_text())["model_type"] == "marian"

"""`tx-verify --original`: ids of a bundle of encoder states beside those of Hugging Face's library, in the report."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from feature_models import feature_checkpoint
from foreign_models import import_here
from state_models import mbart, sinusoidal_trocr, trocr, whisper
from txport.exporter import entry
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.verification.original import OriginalSearch, generate, open_original, random_states
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.features import write_features

INPUTS = 12


def trocr_with_settings(directory: Path) -> None:
    """Published models search with beams, which the comparison of greedy search must not use."""
    trocr(directory)
    file = directory / "generation_config.json"
    settings = {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "no_repeat_ngram_size": 3}
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings, "max_length": 20}))


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "trocr": (trocr, {}),
    "trocr_with_settings": (trocr_with_settings, {}),
    "trocr_with_sinusoids": (sinusoidal_trocr, {}),
    "donut": (mbart, {}),
    "whisper": (whisper, {"source_language": "de"}),
    "whisper_with_times": (whisper, {"source_language": "de", "timestamps": True}),
}


def exported(directory: Path, make: Callable[..., Any], **options: Any) -> Path:
    """Write a model of Hugging Face, its checkpoint and its bundle to `directory`, and return the bundle."""
    make(directory / "model")
    import_here(directory / "model", directory / "checkpoint", tokenizer=False, **options)
    export_bundle(directory / "checkpoint", directory / "bundle", ExportOptions(lowerings=("ort",), verify=False))
    return directory / "bundle"


def verify(bundle: Path, original: Path, *options: object) -> tuple[int, str, str]:
    checkpoint = bundle.with_name("checkpoint")
    chosen = ["--original", original, "--sentences", INPUTS, "--singles", 1, *options]
    done = commands.run(entry, "tx-verify", bundle, checkpoint, *chosen)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_all_ids_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    make, options = MODELS[name]
    bundle = exported(tmp_path, make, **options)
    code, shown, error = verify(bundle, tmp_path / "model")
    assert code == 0, error
    report = json.loads((bundle / "verification.json").read_text())["original"]
    assert (report["inputs"], report["beam"], report["origin"], report["failures"]) == (INPUTS, 4, "random states", [])
    results = {each["engine"]: (each["greedy_identical"], each["beams_identical"]) for each in report["engines"]}
    assert results == {"ort": (INPUTS, INPUTS), "fused": (INPUTS, INPUTS)}
    line = f"ids of {INPUTS} of {INPUTS} inputs by greedy search, and of {INPUTS} with 4 beams, are those of Hugging"
    assert f"Ort: {line}" in " ".join(shown.split()) and f"Fused: {line}" in (bundle / "README.md").read_text()


def test_other_ids_fail(tmp_path: Path) -> None:
    """The original has other weights; a file of states replaces random ones."""
    bundle = exported(tmp_path, trocr)
    trocr(tmp_path / "other", layernorm_embedding=True, activation_function="relu")
    states = [[[float(number + row + column) % 3 for column in range(24)] for row in range(4)] for number in range(5)]
    write_features(tmp_path / "states.npz", [np.array(each, np.float32) for each in states])
    code, shown, error = verify(bundle, tmp_path / "other", "--features", tmp_path / "states.npz")
    assert code == 1 and "of 5 inputs have other ids than Hugging Face's by greedy search" in error
    assert "[red]" not in shown
    report = json.loads((bundle / "verification.json").read_text())
    assert report["original"]["origin"].endswith("states.npz") and not report["passed"]
    assert all(each["greedy_ties"] == each["beams_ties"] == 0 for each in report["original"]["engines"])


def test_a_tie_is_decided_by_rounding(tmp_path: Path) -> None:
    """A token has a twin with the same embedding. Either may be chosen, and no other token."""
    manifest = Manifest.load(exported(tmp_path, trocr))
    states = random_states(manifest, 2)
    with open_original(str(tmp_path / "model")) as model:
        plain = generate(model, manifest, states, 12, 1)
        places = ((row, at) for row in (0, 1) for at, token in enumerate(plain[row]) if plain[row].count(token) == 1)
        row, position = next(places)
        token = plain[row][position]
        twin, stranger = sorted(set(range(6, 50)) - {each for ids in plain for each in ids})[:2]
        table = model.decoder.model.decoder.embed_tokens.weight.data
        table[twin] = table[token]
        search = OriginalSearch(model, manifest, states, position + 1, 1)
        decided = {each: search.is_tie(row, [*plain[row][:position], each]) for each in (token, twin, stranger)}
        assert decided == {token: True, twin: True, stranger: False}


def test_other_models_are_refused(tmp_path: Path) -> None:
    bundle = exported(tmp_path, trocr)
    mbart(tmp_path / "wide")
    code, _, error = verify(bundle, tmp_path / "wide")
    assert code == 2 and "has states of 32 numbers and 50 ids, but the bundle 24 and 50: give the model that" in error
    shutil.copytree(tmp_path / "model", tmp_path / "marian")
    (tmp_path / "marian" / "config.json").write_text('{"model_type": "marian"}')
    code, _, error = verify(bundle, tmp_path / "marian")
    assert code == 2 and "is of marian, not of vision or whisper: give the model that was imported" in error
    code, _, error = verify(bundle, tmp_path / "nothing")
    assert code == 2 and "nothing" in error
    done = commands.run(entry, "tx-verify", bundle, "--original", tmp_path / "model")
    assert done.returncode == 2 and "--original" in done.stderr and "without a CHECKPOINT" in done.stderr


def test_bundles_with_an_encoder_are_refused(tmp_path: Path) -> None:
    feature_checkpoint(tmp_path / "checkpoint")
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(lowerings=("ort",), verify=False))
    code, _, error = verify(tmp_path / "bundle", tmp_path / "model")
    assert code == 2 and "is for bundles of encoder states, unlike" in error

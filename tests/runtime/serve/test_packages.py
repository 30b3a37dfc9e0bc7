"""tx-serve with packages of Argos Translate: bundles of tx-get, made once, by language pair and through a third one."""

import zipfile
from pathlib import Path

import pytest
from ctranslate2_models import EOS, PAD, UNK, write_model
from foreign_models import pieces, sentencepiece_model, write_json
from serving import serving
from txport.runtime.errors import InputError
from txport.runtime.serve.command import bundle_argument
from txport.runtime.translator import Translator


def make_package(directory: Path, source: str, target: str, seed: int) -> Path:
    """A package of a random model."""
    name = f"translate-{source}_{target}-1_0"
    model = sentencepiece_model()
    names = [UNK, PAD, "<s>", EOS, *pieces(model)]
    write_model(directory / name / "model", seed=seed, names=(names, names))
    (directory / name / "sentencepiece.model").write_bytes(model)
    write_json(directory / name / "metadata.json", {"from_code": source, "to_code": target, "argos_version": "1.5"})
    with zipfile.ZipFile(directory / f"{name}.argosmodel", "w") as archive:
        for file in sorted((directory / name).rglob("*")):
            archive.write(file, file.relative_to(directory))
    return directory / f"{name}.argosmodel"


def test_packages_are_served_by_their_languages_and_through_a_common_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    packages = [make_package(tmp_path, "es", "en", 1), make_package(tmp_path, "en", "fr", 2)]
    arguments = [bundle_argument(str(package)) for package in packages]
    names, bundles = zip(*(argument.split("=") for argument in arguments), strict=True)
    assert names == ("translate-es_en-1_0", "translate-en_fr-1_0")
    times = [Path(bundle, "manifest.json").stat().st_mtime_ns for bundle in bundles]
    text = "the cat sees"
    with Translator(bundles[0], "cpu", "ort") as first, Translator(bundles[1], "cpu", "ort") as second:
        english = first.translate([text])[0].text
        french = second.translate([english])[0].text
    assert len({text, english, french}) == 3
    with serving(*map(str, packages), "--engine", "ort") as server:
        assert server.ask(q=text, source="es", target="en") == (200, {"translatedText": english})
        assert server.ask(q=english, source="en", target="fr") == (200, {"translatedText": french})
        assert server.ask(q=text, source="es", target="fr") == (200, {"translatedText": french})
    assert [Path(bundle, "manifest.json").stat().st_mtime_ns for bundle in bundles] == times, "made again"
    assert bundle_argument(f"en-es={packages[0]}") == f"en-es={bundles[0]}"
    assert bundle_argument(bundles[0]) == bundles[0] and bundle_argument("en-de=nowhere") == "en-de=nowhere"


def test_a_package_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "broken.argosmodel").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"could not make a bundle of .*broken\.argosmodel"):
        bundle_argument(str(tmp_path / "broken.argosmodel"))
    told = capfd.readouterr().err.strip()
    assert told.startswith("tx-get: ") and "broken.argosmodel" in told and "\n" not in told

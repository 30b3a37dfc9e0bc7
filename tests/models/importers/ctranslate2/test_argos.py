"""Packages of Argos Translate: languages, settings and texts, and what is refused."""

import json
import random
import shutil
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from click.testing import CliRunner
from ctranslate2_models import EOS, PAD, UNK, ctranslate2, write_model
from foreign_models import (
    INPUTS,
    MADE,
    WORDS,
    assert_refused,
    changed_json,
    import_here,
    pieces,
    sentencepiece_model,
    write_json,
)
from txport.exporter.export import ExportOptions, export_bundle
from txport.exporter.hub.get_command import main as get
from txport.models.importers.choice import import_model
from txport.models.importers.command import main
from txport.models.importers.imported import ImportOptions
from txport.runtime.bundle.schema import Generation
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.translator import Translator

NAME = "translate-en_es-1_0"
METADATA = {
    **{"package_version": "1.0", "argos_version": "1.5", "from_code": "en", "from_name": "English"},
    **{"to_code": "es", "to_name": "Spanish"},
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an installed package: int8, as argos-train converts."""
    directory = tmp_path_factory.mktemp("original") / NAME
    model = sentencepiece_model()
    names = [UNK, PAD, "<s>", EOS, *pieces(model)]
    write_model(directory / "model", quantization="int8", names=(names, names))
    (directory / "sentencepiece.model").write_bytes(model)
    (directory / "stanza").mkdir()
    (directory / "stanza" / "resources.json").write_text("{}")
    write_json(directory / "metadata.json", METADATA)
    return directory


@pytest.fixture
def package(original: Path, tmp_path: Path) -> Path:
    """A copy of the directory to change."""
    return Path(shutil.copytree(original, tmp_path / "packages" / NAME))


def packed(directory: Path, extra: dict[str, bytes] | None = None) -> Path:
    """The package of a directory."""
    target = directory.parent.parent / f"{NAME}.argosmodel"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(directory.rglob("*")):
            archive.write(file, file.relative_to(directory.parent))
        for name, content in (extra or {}).items():
            archive.writestr(name, content)
    return target


def test_beams_and_texts_are_those_of_argos(package: Path, tmp_path: Path) -> None:
    """Argos Translate's calls of SentencePiece and CTranslate2, in float32; texts with unknown tokens apart."""
    checkpoint = import_here(packed(package), tmp_path / "checkpoint")
    export_bundle(checkpoint.directory, tmp_path / "bundle", ExportOptions(verify=False, max_target=MADE))
    draw = random.Random(1)
    lines = [" ".join(draw.choices(WORDS, k=draw.randrange(1, 10))) for _ in range(INPUTS)]
    processor = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    translator = ctranslate2.Translator(
        str(package / "model"), compute_type="float32", inter_threads=1, intra_threads=1
    )
    results = translator.translate_batch(
        [processor.encode(line, out_type=str) for line in lines],
        beam_size=4,
        length_penalty=0.2,
        max_decoding_length=MADE,
        min_decoding_length=0,
        max_batch_size=64,
    )
    made = Translator(tmp_path / "bundle", "cpu", workers=0).translate(lines, generation="model", max_length=MADE)
    known = [(ours.text, result.hypotheses[0]) for ours, result in zip(made, results, strict=True)]
    known = [(text, tokens) for text, tokens in known if UNK not in tokens]
    assert len(known) > INPUTS * 0.9 and len({text for text, _ in known}) > INPUTS / 8
    assert [text for text, _ in known] == [processor.decode(tokens) for _, tokens in known]


def test_languages_and_settings(package: Path, tmp_path: Path) -> None:
    """Of the file, of the directory of an installed package, and of a directory with the file."""
    file = packed(package)
    for number, source in enumerate((file, package, file.parent)):
        imported = import_model(str(source), None, ImportOptions())
        languages = imported.tokenizer.description.languages
        assert imported.kind == "argos" and languages is not None
        assert (list(languages.source), list(languages.target)) == (["en"], ["es"])
        assert (languages.source_default, languages.target_default) == ("en", "es")
        settings = Generation(beam=4, length_penalty=0.2, early_stopping=True, replace_unknowns=True)
        assert imported.generation == settings
        checkpoint = import_here(source, tmp_path / f"checkpoint{number}", source_language="en", target_language="es")
        assert checkpoint.config.alignment_heads == ((2, 0),)
    assert_refused(
        file, "--target-language de is not the target language", "'es'", error=InputError, target_language="de"
    )
    assert import_model(str(file), None, ImportOptions(tokenizer=False)).tokenizer.description.kind == "none"


def test_answers_that_begin_with_a_token(package: Path, tmp_path: Path) -> None:
    """`target_prefix` of packages for several languages; the text does not show it."""
    changed_json(package / "metadata.json", target_prefix="▁cat")
    checkpoint = import_here(package, tmp_path / "checkpoint")
    token = json.loads((package / "model" / "shared_vocabulary.json").read_bytes()).index("▁cat")
    assert checkpoint.tokenizer.target_prefix == (token,)
    export_bundle(checkpoint.directory, tmp_path / "bundle", ExportOptions(verify=False, lowerings=("ort",)))
    (made,) = Translator(tmp_path / "bundle", "cpu", workers=0).translate(["the dog"], max_length=5)
    assert not made.text.startswith("cat")
    changed_json(package / "metadata.json", target_prefix=">>es<<")
    assert_refused(package, "target_prefix = '>>es<<' is not a token of the model")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "sbd"}, "is a package of the type 'sbd': only packages that translate"),
        ({"from_code": None}, "lacks from_code"),
        ({"to_code": 5}, "to_code must be str, not 5"),
        ({"target_prefix": 5}, "target_prefix must be str"),
    ],
)
def test_metadata(package: Path, change: dict[str, Any], words: str) -> None:
    changed_json(package / "metadata.json", **change)
    assert_refused(packed(package), words)


def test_parts_that_are_missing(package: Path) -> None:
    (package / "sentencepiece.model").rename(package / "bpe.model")
    assert_refused(packed(package), "a tokenizer of subword-nmt and Moses (bpe.model)", "--no-tokenizer")
    assert import_model(str(packed(package)), None, ImportOptions(tokenizer=False)).kind == "argos"
    (package / "bpe.model").rename(package / "other")
    assert_refused(packed(package), "has no sentencepiece.model")
    (package / "other").rename(package / "sentencepiece.model")
    data = (package / "model" / "model.bin").read_bytes()
    (package / "model" / "model.bin").write_bytes(data[:1000])
    assert_refused(packed(package), f"{NAME}.argosmodel", "model.bin is incomplete")
    (package / "model" / "model.bin").unlink()
    assert_refused(packed(package), "has no model/model.bin")
    (package / "metadata.json").unlink()
    assert_refused(packed(package), "has no metadata.json files, not one")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_archives(package: Path, tmp_path: Path) -> None:
    file = packed(package)
    whole = file.read_bytes()
    cases: list[tuple[dict[str, bytes], str]] = [
        ({"../outside": b""}, "which lies outside of it"),
        ({"/etc/outside": b""}, "which lies outside of it"),
        ({f"{NAME}/bomb": bytes(80 << 20)}, "would unpack to more than"),
        ({f"{NAME}/metadata.json": b"{}"}, "metadata.json twice"),
        ({"other/metadata.json": b"{}"}, "has 2 metadata.json files, not one"),
    ]
    for extra, words in cases:
        error = CheckpointError if "files" in words else InputError
        assert_refused(packed(package, extra), words, error=error)
    link = zipfile.ZipInfo(f"{NAME}/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(packed(package), "a") as archive:
        archive.writestr(link, "/etc/passwd")
    assert_refused(file, "link, which is neither a file nor a directory", error=InputError)
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        file.write_bytes(whole[:size])
        assert_refused(file, "is not a package of Argos Translate, which is a zip archive")
    changed = bytearray(whole)
    changed[200:300] = bytes(100)
    file.write_bytes(changed)
    assert_refused(file, "is damaged", error=InputError)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["packages", file.name]


def test_the_commands(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tx-import, and tx-get by the path of a package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TXPORT_CACHE", str(tmp_path / "cache"))
    file = packed(package)
    done = CliRunner().invoke(main, [str(file), "-o", str(tmp_path / "checkpoint")])
    assert done.exit_code == 0 and "imported from argos" in done.output, done.output
    assert "a package for en to es" in done.output
    done = CliRunner().invoke(get, ["argos/en-es", "--source", str(file)])
    assert done.exit_code == 0 and "bundle: " in done.output, done.output

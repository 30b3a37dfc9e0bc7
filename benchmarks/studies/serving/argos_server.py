"""Argos Translate as LibreTranslate serves it: Flask's /translate over a package, with waitress's threads.

`python -m txport.benchmarks.studies.serving.argos_server MARIAN --port 5001`

LibreTranslate itself would find its packages, and its splitters of sentences, on the network. This is its path from a
request to the answer: `Translation.hypotheses` of argostranslate, on CTranslate2 in int8 with a beam of 4, and four
threads of waitress. Sentences are not split, which leaves work out. It needs argostranslate, flask and waitress, in an
environment of their own.
"""

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import click


class _Whole:
    """A splitter that leaves a text whole."""

    def __init__(self, _package: object) -> None: ...

    def split_sentences(self, text: str) -> list[str]:
        return [text]


def package(marian: Path, directory: Path) -> None:
    """Write a package of Argos Translate from a Marian model of Hugging Face's."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(marian)).convert(str(directory / "model"), quantization="int8")
    config = directory / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_source_eos": True}))
    shutil.copyfile(marian / "source.spm", directory / "sentencepiece.model")
    names = {"from_code": "en", "from_name": "English", "to_code": "de", "to_name": "German"}
    metadata = {"package_version": "1.0", "argos_version": "1.9", **names}
    (directory / "metadata.json").write_text(json.dumps(metadata))


def translation(directory: Path) -> Any:
    """Return the package, opened by argostranslate, without libraries that split sentences."""
    for name in ("stanza", "spacy", "minisbd"):
        sys.modules[name] = ModuleType(name)
    minisbd: Any = sys.modules["minisbd"]
    minisbd.SBDetect, minisbd.models = object, ModuleType("models")
    from argostranslate import translate
    from argostranslate.package import Package

    translate.MiniSBDSentencizer = _Whole
    languages = translate.Language("en", "English"), translate.Language("de", "German")
    return translate.PackageTranslation(*languages, Package(directory))


@click.command()
@click.argument("marian", type=click.Path(path_type=Path))
@click.option("--port", default=5001, show_default=True)
@click.option("--threads", default=4, show_default=True, help="Threads of waitress. LibreTranslate uses 4.")
def main(marian: Path, port: int, threads: int) -> None:
    """Serve MARIAN, the directory of a Marian model of Hugging Face's, on the loopback address."""
    import waitress
    from flask import Flask, jsonify, request

    with TemporaryDirectory() as place:
        package(marian, Path(place))
        translator = translation(Path(place))
        app = Flask(__name__)

        def translate() -> Any:
            (best,) = translator.hypotheses(request.get_json()["q"], 1)
            return jsonify({"translatedText": best.value})

        app.add_url_rule("/translate", view_func=translate, methods=["POST"])

        waitress.serve(app, host="127.0.0.1", port=port, threads=threads, connection_limit=1000)


if __name__ == "__main__":
    main()

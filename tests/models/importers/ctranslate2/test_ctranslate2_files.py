"""Files of CTranslate2 that are damaged, hostile or of another model: each is refused with one sentence."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import foreign_models
import numpy as np
import pytest
from click.testing import CliRunner
from ctranslate2_models import (
    Variable,
    attribute,
    tokens,
    variables_of,
    write_file,
    write_model,
)
from foreign_models import changed_json, import_here, write_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from txport.models.importers.choice import import_model
from txport.models.importers.command import main
from txport.models.importers.ctranslate2.model_file import read_model_file
from txport.models.importers.imported import ImportOptions, write_imported
from txport.runtime.errors import CheckpointError, InputError, TxportError

assert_refused = partial(foreign_models.assert_refused, tokenizer=False)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "model"
    write_model(directory, quantization="int8")
    return directory


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "model"))


def fields(data: bytes) -> list[int]:
    """Where each field of a model.bin begins."""
    found = [0, 4]
    place = 4

    def text() -> None:
        nonlocal place
        (length,) = struct.unpack_from("<H", data, place)
        found.append(place + 2)
        place += 2 + length
        found.append(place)

    def passed(size: int) -> None:
        nonlocal place
        place += size
        found.append(place)

    text()
    passed(4)
    (count,) = struct.unpack_from("<I", data, place)
    passed(4)
    for _ in range(count):
        text()
        rank = data[place]
        passed(1)
        for _ in range(rank):
            passed(4)
        passed(1)
        (size,) = struct.unpack_from("<I", data, place)
        passed(4)
        passed(size)
    (aliases,) = struct.unpack_from("<I", data, place)
    passed(4)
    for _ in range(2 * aliases):
        text()
    assert place == len(data)
    return sorted(set(found))[:-1]


def test_files_that_end_at_any_field(model: Path) -> None:
    file = model / "model.bin"
    data = file.read_bytes()
    places = fields(data)
    assert len(places) > 500
    for place in reversed(places):
        with file.open("r+b") as opened:
            opened.truncate(place)
        with pytest.raises(CheckpointError, match=r"model\.bin is incomplete: it ends within .*; copy it again$"):
            read_model_file(file, {})
    file.write_bytes(data + b"\0")
    assert_refused(model, "it has 1 bytes after its last field")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_are_refused_in_one_sentence_or_read(data: st.DataObject, original: Path, model: Path) -> None:
    """Bytes of names, shapes, types and sizes; values of weights are any."""
    file = model / "model.bin"
    whole = bytearray(
        (model.parent / "whole").read_bytes() if (model.parent / "whole").is_file() else file.read_bytes()
    )
    (model.parent / "whole").write_bytes(whole)
    places = fields(bytes(whole))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places)) + data.draw(st.integers(0, 3))
        whole[min(place, len(whole) - 1)] = data.draw(st.integers(0, 255))
    file.write_bytes(whole)
    output = model.parent / "output"
    try:
        imported = import_model(str(model), None, ImportOptions(tokenizer=False))
        write_imported(imported, output, "source", replace=output.exists())
    except TxportError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000


def changed_file(model: Path, change: Callable[[list[Variable]], list[Variable]], **options: Any) -> None:
    variables, aliases = variables_of(model / "model.bin")
    given = {"version": 6, "name": "TransformerSpec", "revision": 7, "aliases": aliases, **options}
    write_file(model / "model.bin", variables=change(variables), **given)


def more(*added: Variable) -> Callable[[list[Variable]], list[Variable]]:
    return lambda variables: [*(each for each in variables if each.name not in {a.name for a in added}), *added]


def tensor(name: str, *shape: int) -> Variable:
    return Variable(name, shape, 0, bytes(4 * int(np.prod(shape))))


def single(name: str, value: float) -> Variable:
    return Variable(name, (), 0, struct.pack("<f", value))


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (tensor("encoder/layer_0/self_attention/relative_position_keys", 5, 8), "different kinds of positions"),
        (tensor("encoder/layer_0/self_attention/q_norm/gamma", 8), "norms of queries, keys or values"),
        (tensor("decoder/layer_0/input_layer_norm/gamma", 32), "a norm on both sides of a sublayer"),
        (tensor("decoder/project_in/weight", 32, 16), "projections between embeddings and layers"),
        (tensor("encoder/embeddings_1/weight", 9, 32), "several embeddings of a source token"),
        (tensor("encoder/layer_0/ffn/linear_0/weight_zero", 9), "AWQ"),
        (tensor("encoder/layer_0/surprise", 9), "weights that this importer does not support"),
        (attribute("encoder/surprise", 1), "the option encoder/surprise = 1"),
        (attribute("encoder/multi_query_attention", 1), "multi-query attention"),
        (attribute("decoder/layer_0/self_attention/num_heads_kv", 2), "grouped or multi-query attention"),
        (attribute("decoder/alibi", 1), "ALiBi positions"),
        (attribute("decoder/sliding_window", 9), "attention in a sliding window"),
        (single("decoder/final_logit_softcapping", 30.0), "capped logits"),
        (single("decoder/layer_0/layer_scalar", 0.5), "scaled layers"),
        (attribute("encoder/activation", 5), "encoder/activation = Tanh"),
        (attribute("encoder/activation", 1), "activation is gelu_tanh in the encoder and relu in the decoder"),
        (attribute("encoder/pre_norm", 0), "norms is (False, True) in the encoder"),
        (attribute("encoder/num_heads", 5), "encoder/num_heads = 5 does not divide the 32 rows of a query"),
        (attribute("encoder/num_heads", 0), "encoder/num_heads = 0 does not divide"),
        (attribute("encoder/num_heads", -4), "encoder/num_heads = -4 does not divide"),
        (single("decoder/alignment_layer", 9), "decoder/alignment_layer and decoder/alignment_heads point outside"),
        (single("decoder/alignment_heads", 0.5), "decoder/alignment_heads must be a whole number, not 0.5"),
        (single("decoder/scale_embeddings", float("nan")), "decoder/scale_embeddings must be a finite number"),
        (attribute("encoder/layer_0/self_attention/rotary_dim", 4), "turns a part of each head"),
        (attribute("encoder/layer_0/self_attention/rotary_dim", 8), "different kinds of positions"),
        (tensor("encoder/layer_0/ffn/linear_0/bias", 9), "has shape (9,), but its configuration needs (48,)"),
        (tensor("encoder/layer_0/self_attention/linear_0/weight", 95, 32), "but a matrix of 3 parts is needed"),
        (tensor("encoder/embeddings_0/weight", 60), "no table of encoder embeddings"),
        (tensor("encoder/embeddings_0/weight", 9, 32), "60 tokens (<unk> included), but the embedding has 9 rows"),
        (tensor("decoder/layer_0/ffn/linear_0/weight_scale", 9), "weight_scale has shape (9,)"),
        (tensor("encoder/layer_0/ffn/linear_0/weight_scale", 48), "holds NaN or infinity"),
        (Variable("decoder/layer_0/ffn/linear_1/bias", (32,), 3, bytes(128)), "holds no floating point numbers"),
    ],
)
def test_other_models_and_impossible_ones(added: Variable, words: str, model: Path, tmp_path: Path) -> None:
    aliases = {} if added.name.startswith("encoder/embeddings_0") else None
    changed_file(model, more(added), **({} if aliases is None else {"aliases": aliases}))
    with pytest.raises(CheckpointError, match=re.escape(words)) as caught:
        import_here(model, tmp_path / "checkpoint", tokenizer=False)
    assert "\n" not in str(caught.value)


KEYS = "encoder/layer_0/self_attention/relative_position_keys"


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (tensor(KEYS, 9, 8), "relative_position_values has shape (7, 8), but its configuration needs (9, 8)"),
        (tensor(KEYS, 6, 8), "relative_position_keys has shape (6, 8), but its configuration needs (7, 8)"),
        (tensor(KEYS, 7, 9), "relative_position_keys has shape (7, 9), but its configuration needs (7, 8)"),
        (tensor(KEYS, 7), "relative_position_keys has shape (7,), but its configuration needs (7, 8)"),
        (tensor(KEYS, 1, 8), "position_distance = 0 must be at least 1"),
        (single(KEYS, 1.0), "has the option encoder/layer_0/self_attention/relative_position_keys = 1.0"),
        (tensor(KEYS.replace("0", "1"), 5, 8), "relative_position_keys has shape (5, 8), but its configuration needs"),
        (tensor(KEYS.replace("position_keys", "attention_bias"), 8, 4), "has relative and shaw positions in encoder"),
        (
            attribute(KEYS.replace("relative_position_keys", "rotary_dim"), 8),
            "has rotary and shaw positions in encoder",
        ),
        (Variable(KEYS, (7, 8), 0, b"\xff" * 224), "relative_position_keys holds NaN or infinity"),
    ],
)
def test_damaged_vectors_by_distance(added: Variable, words: str, tmp_path: Path) -> None:
    write_model(tmp_path / "model", relative_position=True)
    changed_file(tmp_path / "model", more(added))
    with pytest.raises(CheckpointError, match=re.escape(words)) as caught:
        import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["keys", "values"])
def test_missing_vectors_by_distance(name: str, tmp_path: Path) -> None:
    write_model(tmp_path / "model", relative_position=True)
    ending = f"layer_1/self_attention/relative_position_{name}"
    changed_file(tmp_path / "model", lambda variables: [each for each in variables if not each.name.endswith(ending)])
    assert_refused(tmp_path / "model", f"relative_position_{name}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "TransformerDecoderSpec"}, "a language model without an encoder (TransformerDecoderSpec)"),
        ({"name": "TransformerEncoderSpec"}, "an encoder without a decoder"),
        ({"name": "WhisperSpec"}, "a Whisper model, whose input is speech"),
        ({"name": "Wav2Vec2Spec"}, "a wav2vec 2.0 model"),
        ({"name": "Wav2Vec2BertSpec"}, "a wav2vec 2.0-BERT model"),
        ({"name": "DramaSpec"}, "of the specification 'DramaSpec'"),
        ({"revision": 8}, "revision 8 of TransformerSpec; there are 1 to 7"),
        ({"version": 7}, "version 7 of CTranslate2's format; there are up to 6"),
    ],
)
def test_other_specifications_and_versions(options: dict[str, Any], words: str, model: Path) -> None:
    changed_file(model, lambda variables: variables, **options)
    assert_refused(model, words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: [*v, v[0]], "it has the variable decoder/activation twice"),
        (lambda v: [*v, v[0]._replace(name="x" * 2000)], "is not a string"),
        (lambda v: [*v, v[0]._replace(name="a\0b")], "is not a string"),
        (lambda v: [*v, v[0]._replace(shape=(1,) * 200, name="deep")], "deep has 200 dimensions"),
        (
            lambda v: [*v, v[0]._replace(shape=(1 << 31, 1 << 31), name="large")],
            "large of shape (2147483648, 2147483648)",
        ),
    ],
)
def test_hostile_variables(change: Any, words: str, model: Path) -> None:
    changed_file(model, change)
    assert_refused(model, words)


@pytest.mark.parametrize(
    ("aliases", "words"),
    [
        ({"encoder/x": "nothing"}, "encoder/x is an alias of nothing, which it does not have"),
        ({"decoder/activation": "decoder/pre_norm"}, "it has the variable decoder/activation twice"),
    ],
)
def test_hostile_aliases(aliases: dict[str, str], words: str, model: Path) -> None:
    changed_file(model, lambda variables: variables, aliases=aliases)
    assert_refused(model, words)


@pytest.mark.parametrize("place", [4, 23])
def test_counts_that_no_file_has(place: int, model: Path) -> None:
    """The first byte of the version's length of a name, and the number of variables."""
    data = bytearray((model / "model.bin").read_bytes())
    assert data[6:21] == b"TransformerSpec"
    place = 6 + 16 + 4 if place == 23 else place
    data[place : place + 4] = b"\xff\xff\xff\x7f"
    (model / "model.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match="claims to have 2147483647 variables|is not a string|ends within"):
        read_model_file(model / "model.bin", {})


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "[]", "must hold a JSON object, not list"),
        ("config.json", "{", "is not JSON"),
        ("config.json", "{}", "lacks unk_token"),
        ("shared_vocabulary.json", None, "has no shared_vocabulary.json (or .txt) and no source_vocabulary.json"),
        ("shared_vocabulary.json", "{}", "must hold a JSON list, not dict"),
        ("shared_vocabulary.json", "[1]", "is not a list of tokens"),
        ("shared_vocabulary.json", '["\\ud800"]', "is not Unicode"),
        ("shared_vocabulary.json", '["a"]', "has 2 tokens (<unk> included), but the embedding has 60 rows"),
    ],
)
def test_files_beside_it(name: str, content: str | None, words: str, model: Path) -> None:
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_text(content)
    assert_refused(model, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eos_token": "<end>"}, "lacks the token '<end>', which"),
        ({"decoder_start_token": "<go>"}, "sets as decoder_start_token"),
        ({"unk_token": 5}, "unk_token must be str, not 5"),
        ({"add_source_eos": "yes"}, "add_source_eos must be bool"),
        ({"layer_norm_epsilon": -1.0}, "layer_norm_epsilon"),
        ({"quantization_type": 1}, "weights of 4 bits (quantization_type = 1)"),
    ],
)
def test_fields_of_config(changes: dict[str, Any], words: str, model: Path) -> None:
    changed_json(model / "config.json", **changes)
    assert_refused(model, words)


def test_text_vocabularies_are_those_of_json(model: Path) -> None:
    """Lines end in a line feed, or all of them in a carriage return as well; the unknown token may be missing."""
    expected = import_model(str(model), None, ImportOptions(tokenizer=False)).config
    (model / "shared_vocabulary.json").unlink()
    for text in ("\n".join(tokens()) + "\n", "\r\n".join(tokens()) + "\r\n"):
        (model / "shared_vocabulary.txt").write_bytes(text.encode())
        assert import_model(str(model), None, ImportOptions(tokenizer=False)).config == expected
    (model / "shared_vocabulary.txt").write_text("\n".join(tokens()[1:]))
    assert import_model(str(model), None, ImportOptions(tokenizer=False)).config.unk_id == 59
    (model / "shared_vocabulary.txt").write_bytes(b"\xff\n")
    assert_refused(model, "is not UTF-8")


def test_start_tokens_that_callers_choose(model: Path) -> None:
    config = json.loads((model / "config.json").read_bytes())
    write_json(model / "config.json", {**config, "decoder_start_token": None})
    assert_refused(model, "has no decoder_start_token", "--target-language", error=InputError)
    imported = import_model(str(model), None, ImportOptions(tokenizer=False, target_language="w7"))
    assert imported.config.bos_id == tokens().index("w7")


def test_the_command(model: Path, tmp_path: Path) -> None:
    """A directory, its model.bin, and a damaged one, which ends with the code 2 of bad input."""
    for number, source in enumerate((model, model / "model.bin")):
        done = CliRunner().invoke(main, [str(source), "-o", str(tmp_path / f"ours{number}"), "--no-tokenizer"])
        assert done.exit_code == 0 and "imported from ctranslate2" in done.output, done.output
    assert "32 matrices are int8 in model.bin" in done.output
    (model / "model.bin").write_bytes((model / "model.bin").read_bytes()[:-1])
    done = CliRunner().invoke(main, [str(model), "-o", str(tmp_path / "damaged"), "--no-tokenizer"])
    assert isinstance(done.exception, CheckpointError) and not (tmp_path / "damaged").exists()

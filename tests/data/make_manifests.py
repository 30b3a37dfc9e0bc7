"""Makes `tests/data/manifests`: manifests that every runtime must accept (`good/`) or refuse (`bad/`), in any language.

Each bad one has one fault, which its name tells; all else about it is right, its own hash too (unless that is the
fault). `index.json` names them all, and for each bad one words that the message must contain. Write them again with
`python tests/data/make_manifests.py`.
"""

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[1] / "data" / "manifests"
TOY = Path(__file__).with_name("toy_bundle") / "manifest.json"
ZEROS = "0" * 64

Value = dict[str, Any]


def signed(text: str) -> bytes:
    """The manifest's bytes with its own hash where the last 64 zeros stand."""
    start = text.rindex(ZEROS)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return (text[:start] + digest + text[start + 64 :]).encode("utf-8", "surrogatepass")


def text_of(value: Value, **style: Any) -> str:
    return json.dumps(value | {"sha256": ZEROS}, **({"indent": 1, "ensure_ascii": False} | style)) + "\n"


def base() -> Value:
    """The toy bundle's manifest, without its hash, with everything that may be null or empty filled in."""
    value: Value = json.loads(TOY.read_bytes())
    del value["sha256"]
    value["precision"]["islands"] = [
        {"graph": "encoder", "nodes": ["Where_9"], "reason": "65,504 is too small: 🙂 “ö”"}
    ]
    value["verification"] = {
        "passed": True,
        "sentences": 1000,
        "token_identical": 1000,
        "batch_identical": 1000,
        "max_logit_error": 1e-5,
    }
    return value


def changed(change: Callable[[Value], object]) -> bytes:
    value = copy.deepcopy(base())
    change(value)
    return signed(text_of(value))


def put(*path: Any, to: Any) -> bytes:
    """The manifest with one value replaced or added."""

    def change(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return changed(change)


def without(*path: Any) -> bytes:
    """The manifest with one value removed."""

    def change(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        del value[path[-1]]

    return changed(change)


def file_named(name: str) -> bytes:
    return put("files", name, to={"bytes": 1, "sha256": "0" * 63 + "1"})


def replaced(old: str, new: str) -> bytes:
    """The manifest's text with the first `old` replaced, then signed."""
    text = text_of(base())
    assert old in text, old
    return signed(text.replace(old, new, 1))


def without_tokenizer(value: Value) -> None:
    value["tokenizer"] |= {"kind": "none", "source": None, "target": None}
    value["verification"] = None


LANGUAGES = {
    "source": {"deu_Latn": 90, "eng_Latn": 91},
    "target": {"fra_Latn": 92, "中文": 93},
    "source_default": "eng_Latn",
    "target_default": None,
    "in_text": False,
}


def with_languages(value: Value) -> None:
    """Placeholders in every list, and ids beside them."""
    value["tokenizer"] |= {
        "source_prefix": ["source_language", 5],
        "source_suffix": [3, "target_language"],
        "target_prefix": ["target_language", 95],
        "languages": copy.deepcopy(LANGUAGES),
    }


def languages_with(*path: Any, to: Any) -> bytes:
    """The manifest with languages, and one value of its tokenizer replaced."""

    def change(value: Value) -> None:
        with_languages(value)
        inner = value["tokenizer"]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return changed(change)


def sides_of_different_size(value: Value) -> None:
    """Ids that only one of the vocabularies has, each where that vocabulary is meant."""
    with_languages(value)
    value["model"]["source_vocabulary"] = 1000
    value["tokenizer"]["source_prefix"] = ["source_language", 999]
    value["tokenizer"]["source_suffix"] = [3]
    value["tokenizer"]["languages"]["source"]["deu_Latn"] = 998


def languages_in_text(value: Value) -> None:
    with_languages(value)
    value["tokenizer"] |= {"source_prefix": ["target_language"], "source_suffix": [3], "target_prefix": []}
    value["tokenizer"]["languages"] |= {"source": {}, "source_default": None, "in_text": True}


def vocabularies(value: Value) -> None:
    for side in ("source", "target"):
        name = f"tokenizer/{side}.vocabulary.json"
        value["tokenizer"][side] = {"model": f"tokenizer/{side}.model", "vocabulary": name}
        for file in value["tokenizer"][side].values():
            value["files"][file] = {"bytes": 1, "sha256": "0" * 63 + "1"}


def of_tokenizers(value: Value) -> None:
    value["tokenizer"] |= {"kind": "tokenizers", "source_prefix": [2], "source_suffix": [3], "target_prefix": [0]}
    value["files"]["tokenizer/tokenizer.json"] = {"bytes": 1, "sha256": "0" * 63 + "1"}
    for side in ("source", "target"):
        value["tokenizer"][side] = {"model": "tokenizer/tokenizer.json", "vocabulary": None}


def ids_with_languages(value: Value) -> None:
    with_languages(value)
    value["tokenizer"] |= {"kind": "none", "source": None, "target": None}


def one_lowering(value: Value) -> None:
    value["graphs"] = value["graphs"][:2]


def float16(value: Value) -> None:
    value["precision"] |= {"type": "float16", "weights": "float16"}
    for graph in value["graphs"]:
        for tensor in graph["inputs"] + graph["outputs"]:
            tensor["dtype"] = tensor["dtype"].replace("float32", "float16")


def without_cache_positions(value: Value) -> None:
    for graph in value["graphs"][1:]:
        graph["inputs"] = [tensor for tensor in graph["inputs"] if tensor["name"] != "cache_positions"]


def optional_parts(value: Value) -> None:
    """A graph and outputs that come with a later version, for whoever knows them."""
    encoder, step = value["graphs"][:2]
    encoder["outputs"].append(
        {"name": "cross_attention_0", "dtype": "float32", "shape": ["batch", 2, "source", 7], "optional": True}
    )
    step["outputs"].insert(0, {"name": "next_beam", "dtype": "int32", "shape": ["batch"], "optional": True})
    value["graphs"].append(copy.deepcopy(encoder) | {"name": "decoder", "role": "decoder", "optional": True})


def unknown_graph(value: Value) -> None:
    optional_parts(value)
    value["graphs"][-1]["optional"] = False


def two_optional_graphs(value: Value) -> None:
    optional_parts(value)
    value["graphs"].append(value["graphs"][-1] | {"name": "another"})


def optional_graph_with(field: str, to: Any) -> bytes:
    def change(value: Value) -> None:
        optional_parts(value)
        value["graphs"][-1][field] = to

    return changed(change)


def any_order(value: Value) -> None:
    for key in reversed(list(value)):
        value[key] = value.pop(key)
    for graph in value["graphs"]:
        graph["inputs"].reverse()
        graph["outputs"].reverse()


def good() -> dict[str, bytes]:
    return {
        "toy": TOY.read_bytes(),
        "everything": signed(text_of(base())),
        "without_tokenizer": changed(without_tokenizer),
        "languages": changed(with_languages),
        "languages_in_text": changed(languages_in_text),
        "languages_without_defaults": languages_with("languages", "source_default", to=None),
        "languages_of_ids": changed(ids_with_languages),
        "sides_of_different_size": changed(sides_of_different_size),
        "no_suffix": put("tokenizer", "source_suffix", to=[]),
        "vocabularies": changed(vocabularies),
        "of_tokenizers": changed(of_tokenizers),
        "one_lowering": changed(one_lowering),
        "float16": changed(float16),
        "int8": put("precision", "weights", to="int8"),
        "without_cache_positions": changed(without_cache_positions),
        "optional_parts": changed(optional_parts),
        "any_order": changed(any_order),
        "one_line": signed(text_of(base(), indent=None, separators=(",", ":"))),
        "escaped": signed(text_of(base(), ensure_ascii=True)),
        "no_final_line_break": signed(text_of(base()).rstrip()),
        "whole_number_as_error": put("verification", "max_logit_error", to=0),
        "file_in_deep_directory": file_named("a/b.c/d e/ö.txt"),
        "file_with_dots": file_named("..a/b..c/...d"),
    }


def bad() -> dict[str, tuple[bytes, str]]:
    """Name -> (bytes, words of the message)."""
    whole = signed(text_of(base()))
    of_values = {**_bad_json(whole), **_bad_fields(), **_bad_sizes()}
    return {**of_values, **_bad_files(), **_bad_tokenizers(), **_bad_graphs(), **_bad_interfaces()}


def _bad_json(whole: bytes) -> dict[str, tuple[bytes, str]]:
    last = whole.rindex(b"\n}")
    digit = whole[last - 2 : last - 1]
    return {
        "empty": (b"", "JSON"),
        "truncated": (whole[: len(whole) // 2], "JSON"),
        "not_json": (b"\x08\x07\x12\x04onnx", "JSON"),
        "not_an_object": (b"[]\n", "object"),
        "not_utf8": (whole.replace("ö".encode(), b"\xf6"), "JSON"),
        "byte_order_mark": (b"\xef\xbb\xbf" + whole, "JSON"),
        "trailing_text": (whole + b"{}", "JSON"),
        "deep_nesting": (b"[" * 5000 + b"]" * 5000, ""),
        "repeated_field": (replaced('"made_by": {', '"made_by": {}, "made_by": {'), "twice"),
        "repeated_nested_field": (replaced('"heads": 2,', '"heads": 2, "heads": 2,'), "twice"),
        "nan": (replaced('"max_logit_error": 1e-05', '"max_logit_error": NaN'), "JSON"),
        "infinity": (replaced('"max_logit_error": 1e-05', '"max_logit_error": 1e999'), "JSON"),
        "integer_of_65_bits": (replaced('"heads": 2,', '"heads": 18446744073709551616,'), "JSON"),
        "unpaired_surrogate": (replaced('"name": "toy"', '"name": "\\ud800"'), "JSON"),
        "changed_digit_of_the_hash": (
            whole[: last - 2] + (b"1" if digit != b"1" else b"2") + whole[last - 1 :],
            "changed",
        ),
        "changed_after_signing": (whole.replace(b'"bos": 2', b'"bos": 1'), "changed"),
        "hash_in_capitals": (whole[: last - 65] + whole[last - 65 :].upper(), "sha256"),
    }


def _bad_fields() -> dict[str, tuple[bytes, str]]:
    return {
        "newer_format": (put("format_version", to=2), "format_version 2"),
        "newer_format_with_other_fields": (changed(lambda value: (value.clear(), value.update(format_version=7))), "7"),
        "format_version_zero": (put("format_version", to=0), "format_version"),
        "format_version_text": (put("format_version", to="1"), "format_version"),
        "format_version_true": (put("format_version", to=True), "format_version"),
        "format_version_missing": (without("format_version"), "format_version"),
        "hash_missing": (text_of(base()).replace(f'"sha256": "{ZEROS}"', '"sha256": ""').encode(), "sha256"),
        "missing_field": (without("tokens"), "tokens"),
        "missing_nested_field": (without("graphs", 1, "outputs", 0, "optional"), "optional"),
        "generation_missing": (without("generation"), "generation"),
        "generation_unknown": (put("generation", "beams", to=4), "beams"),
        "unknown_field": (put("comment", to="hello"), "comment"),
        "unknown_nested_field": (put("dimensions", "beam", to={"min": 1, "opt": 1, "max": 1}), "beam"),
        "text_for_number": (put("model", "heads", to="2"), "heads"),
        "true_for_number": (put("model", "heads", to=True), "heads"),
        "fraction_for_integer": (put("model", "heads", to=2.0), "heads"),
        "number_for_true": (put("graphs", 0, "inputs", 0, "optional", to=0), "optional"),
        "null_for_object": (put("tokens", to=None), "tokens"),
        "object_for_array": (put("graphs", to={}), "graphs"),
        "text_for_error": (put("verification", "max_logit_error", to="small"), "max_logit_error"),
        "alias_of_three": (put("graphs", 1, "aliases", 0, to=["token_ids", "next_token_ids", "logits"]), "aliases"),
    }


def _bad_sizes() -> dict[str, tuple[bytes, str]]:
    return {
        "min_above_opt": (put("dimensions", "batch", "min", to=5), "dimensions.batch"),
        "opt_above_max": (put("dimensions", "source", "opt", to=25), "dimensions.source"),
        "min_zero": (put("dimensions", "target", "min", to=0), "dimensions.target"),
        "max_too_large": (put("dimensions", "target", "max", to=2**31), "dimensions.target"),
        "no_heads": (put("model", "heads", to=0), "model.heads"),
        "billions_of_layers": (put("model", "decoder_layers", to=2**31 - 1), "misses"),
        "negative_layers": (put("model", "encoder_layers", to=-1), "model.encoder_layers"),
        "eos_outside_vocabulary": (put("tokens", "eos", to=96), "tokens.eos"),
        "negative_pad": (put("tokens", "pad", to=-1), "tokens.pad"),
    }


def _bad_files() -> dict[str, tuple[bytes, str]]:
    return {
        "path_to_parent": (file_named("../secret"), "../secret"),
        "path_to_parent_inside": (file_named("onnx/../../secret"), "secret"),
        "path_absolute": (file_named("/etc/passwd"), "/etc/passwd"),
        "path_with_backslash": (file_named("onnx\\weights.bin"), "plain path"),
        "path_with_dot": (file_named("./README.md"), "plain path"),
        "path_with_empty_part": (file_named("onnx//x"), "plain path"),
        "path_to_directory": (file_named("onnx/"), "plain path"),
        "path_empty": (file_named(""), "plain path"),
        "path_with_nul": (file_named("a\0b"), "plain path"),
        "lists_itself": (file_named("manifest.json"), "must not be listed"),
        "lists_an_engine": (file_named("engines/sm90/step.plan"), "must not be listed"),
        "negative_size": (put("files", "golden.json", "bytes", to=-1), "golden.json"),
        "short_hash": (put("files", "golden.json", "sha256", to="ab"), "golden.json"),
        "graph_not_listed": (put("graphs", 0, "file", to="onnx/other.onnx"), "other.onnx"),
    }


def _bad_tokenizers() -> dict[str, tuple[bytes, str]]:
    def changed_vocabulary(to: Any) -> bytes:
        return changed(lambda value: (vocabularies(value), value["tokenizer"]["target"].update(vocabulary=to)))

    def tokenizers_with_vocabulary(value: Value) -> None:
        of_tokenizers(value)
        value["tokenizer"]["target"]["vocabulary"] = "tokenizer/tokenizer.json"

    def unused_prefix(value: Value) -> None:
        sides_of_different_size(value)
        value["tokenizer"]["source_suffix"] = [3, "target_language"]
        value["tokenizer"]["target_prefix"] = []
        value["tokenizer"]["languages"]["target"]["fra_Latn"] = 1000

    return {
        "unknown_tokenizer": (put("tokenizer", "kind", to="bpe"), "bpe"),
        "tokenizer_not_listed": (put("tokenizer", "source", "model", to="tokenizer/other.model"), "other.model"),
        "vocabulary_not_listed": (changed_vocabulary("tokenizer/other.json"), "tokenizer.target.vocabulary"),
        "vocabulary_of_tokenizers": (changed(tokenizers_with_vocabulary), "tokenizer.target.vocabulary must be null"),
        "vocabulary_missing": (without("tokenizer", "source", "vocabulary"), "vocabulary"),
        "tokenizer_as_text": (put("tokenizer", "source", to="tokenizer/shared.model"), "tokenizer.source"),
        "tokenizer_without_file": (put("tokenizer", "target", to=None), "tokenizer.target"),
        "file_without_tokenizer": (put("tokenizer", "kind", to="none"), "tokenizer.source"),
        "languages_missing": (without("tokenizer", "languages"), "languages"),
        "suffix_missing": (without("tokenizer", "source_suffix"), "source_suffix"),
        "suffix_null": (put("tokenizer", "source_suffix", to=None), "source_suffix"),
        "affix_fraction": (put("tokenizer", "source_prefix", to=[1.0]), "source_prefix"),
        "affix_true": (put("tokenizer", "source_prefix", to=[True]), "source_prefix"),
        "affix_null": (put("tokenizer", "target_prefix", to=[None]), "target_prefix"),
        "unknown_placeholder": (languages_with("source_prefix", to=["language"]), "source_prefix"),
        "placeholder_without_languages": (languages_with("languages", to=None), "tokenizer.source_prefix"),
        "placeholder_of_no_language": (
            changed(lambda value: (with_languages(value), value["tokenizer"]["languages"].update(target={}))),
            "tokenizer.source_suffix",
        ),
        "prefix_outside_vocabulary": (put("tokenizer", "source_prefix", to=[96]), "tokenizer.source_prefix"),
        "suffix_negative": (put("tokenizer", "source_suffix", to=[3, -1]), "tokenizer.source_suffix"),
        "forced_outside_vocabulary": (put("tokenizer", "target_prefix", to=[96]), "tokenizer.target_prefix"),
        "source_language_outside": (languages_with("languages", "source", "deu_Latn", to=96), "languages.source"),
        "source_language_negative": (languages_with("languages", "source", "deu_Latn", to=-1), "languages.source"),
        "target_language_outside": (languages_with("languages", "target", "中文", to=96), "languages.target"),
        "target_language_outside_the_source": (changed(unused_prefix), "outside the source vocabulary"),
        "language_text_for_id": (languages_with("languages", "target", "fra_Latn", to="92"), "fra_Latn"),
        "default_not_in_table": (languages_with("languages", "source_default", to="fra_Latn"), "source_default"),
        "target_default_not_in_table": (languages_with("languages", "target_default", to=""), "target_default"),
        "in_text_number": (languages_with("languages", "in_text", to=0), "in_text"),
        "in_text_missing": (
            changed(lambda value: (with_languages(value), value["tokenizer"]["languages"].pop("in_text"))),
            "in_text",
        ),
    }


def _bad_graphs() -> dict[str, tuple[bytes, str]]:
    return {
        "no_encoder": (without("graphs", 0), "encoder"),
        "two_encoders": (put("graphs", 1, "role", to="encoder"), "encoder"),
        "no_decoder": (changed(lambda value: value["graphs"].__delitem__(slice(1, None))), "decoder_step"),
        "repeated_graph_name": (put("graphs", 2, "name", to="decoder_step.ort"), "decoder_step.ort"),
        "repeated_lowering": (put("graphs", 2, "lowering", to="ort"), "'ort' twice"),
        "unknown_lowering": (put("graphs", 2, "lowering", to="fused"), "fused"),
        "unknown_role": (changed(unknown_graph), "'decoder'"),
        "other_role_for_the_encoder": (put("graphs", 0, "role", to="vision"), "'encoder'"),
        "optional_encoder": (put("graphs", 0, "optional", to=True), "cannot do without its role 'encoder'"),
        "optional_step": (put("graphs", 1, "optional", to=True), "cannot do without its role 'decoder_step'"),
        "optional_missing": (without("graphs", 1, "optional"), "optional"),
        "repeated_optional_graph": (
            changed(two_optional_graphs),
            "the role 'decoder' in the lowering 'standard' twice",
        ),
        "optional_graph_not_listed": (optional_graph_with("file", "onnx/decoder.onnx"), "onnx/decoder.onnx"),
        "optional_graph_without_opset": (optional_graph_with("opsets", {}), "opsets"),
        "standard_decoder": (put("graphs", 2, "lowering", to="standard"), "standard"),
        "no_standard_opset": (put("graphs", 0, "opsets", to={"com.microsoft": 1}), "opsets"),
        "opset_zero": (put("graphs", 0, "opsets", to={"": 0}), "opsets"),
        "island_of_no_graph": (put("precision", "islands", 0, "graph", to="decoder"), "islands"),
        "unknown_precision": (put("precision", "type", to="bfloat16"), "bfloat16"),
        "unknown_weights": (put("precision", "weights", to="int4"), "int4"),
        "no_weights": (without("precision", "weights"), "weights"),
        "weights_of_other_type": (put("precision", "weights", to="float16"), "neither"),
    }


def _bad_interfaces() -> dict[str, tuple[bytes, str]]:
    step = base()["graphs"][1]
    where = {tensor["name"]: (kind, i) for kind in ("inputs", "outputs") for i, tensor in enumerate(step[kind])}

    def tensor(name: str, field: str, to: Any) -> bytes:
        return put("graphs", 1, *where[name], field, to=to)

    extra = {"name": "temperature", "dtype": "float32", "shape": ["batch"], "optional": False}
    return {
        "unknown_dtype": (tensor("logits", "dtype", "float64"), "float64"),
        "unknown_dimension": (tensor("logits", "shape", ["rows", 96]), "rows"),
        "dimension_zero": (tensor("logits", "shape", ["batch", 0]), "logits"),
        "fractional_dimension": (tensor("logits", "shape", ["batch", 96.5]), "shape"),
        "wrong_dtype": (tensor("positions", "dtype", "int32"), "positions"),
        "wrong_shape": (tensor("cross_key_0", "shape", ["batch", 2, "source", 4]), "cross_key_0"),
        "wrong_vocabulary": (tensor("logits", "shape", ["batch", 97]), "logits"),
        "caches_of_other_type": (tensor("self_key_0", "dtype", "float16"), "self_key_0"),
        "optional_input": (tensor("positions", "optional", True), "positions"),
        "repeated_input": (tensor("positions", "name", "token_ids"), "token_ids"),
        "extra_output": (put("graphs", 1, "outputs", to=[*step["outputs"], extra]), "temperature"),
        "extra_optional_input": (
            put("graphs", 1, "inputs", to=[*step["inputs"], extra | {"optional": True}]),
            "temperature",
        ),
        "extra_input": (put("graphs", 1, "inputs", to=[*step["inputs"], extra]), "temperature"),
        "missing_input": (without("graphs", 1, *where["cross_bias"]), "cross_bias"),
        "missing_output": (without("graphs", 1, *where["logits"]), "logits"),
        "missing_cache_of_a_layer": (put("model", "decoder_layers", to=2), "_1"),
        "missing_alias": (without("graphs", 1, "aliases", 0), "token_ids"),
        "repeated_alias": (put("graphs", 1, "aliases", to=[*step["aliases"], step["aliases"][0]]), "twice"),
        "alias_of_unknown_input": (put("graphs", 1, "aliases", 0, to=["ids", "next_token_ids"]), "'ids'"),
        "alias_of_unknown_output": (put("graphs", 1, "aliases", 0, to=["token_ids", "next_ids"]), "'next_ids'"),
        "alias_of_other_shape": (put("graphs", 1, "aliases", to=_swapped(step["aliases"])), "differ"),
    }


def _swapped(aliases: list[list[str]]) -> list[list[str]]:
    outputs = {"next_token_ids": "next_finished", "next_finished": "next_token_ids"}
    return [[name, outputs.get(output, output)] for name, output in aliases]


def write_fixtures(directory: Path, good: dict[str, bytes], bad: dict[str, tuple[bytes, str]]) -> None:
    """Write `good/NAME.json`, `bad/NAME.json` and the index of both, with the words of each refusal."""
    for folder, files in (("good", good), ("bad", {name: data for name, (data, _) in bad.items()})):
        (directory / folder).mkdir(parents=True, exist_ok=True)
        for old in (directory / folder).glob("*.json"):
            old.unlink()
        for name, data in files.items():
            (directory / folder / f"{name}.json").write_bytes(data)
    index = {"good": sorted(good), "bad": {name: words for name, (_, words) in sorted(bad.items())}}
    (directory / "index.json").write_text(json.dumps(index, indent=1) + "\n")


def write(directory: Path) -> None:
    """Write all files and the index."""
    write_fixtures(directory, good(), bad())


if __name__ == "__main__":
    write(DIRECTORY)

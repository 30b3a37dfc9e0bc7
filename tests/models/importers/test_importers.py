"""What every importer owes: one sentence for what is missing, damaged, hostile or not supported; no half checkpoint."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from foreign_models import assert_refused, changed_json, import_here, write_json
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_marian import tiny_marian
from txport.models.checkpoint import load_checkpoint
from txport.models.importers.choice import import_model
from txport.models.importers.command import main
from txport.models.importers.imported import ImportOptions
from txport.models.importers.plan import ImportPlan
from txport.models.importers.tokenizers.pieces import completed, pieces_of
from txport.models.importers.weights import Stored
from txport.runtime.errors import CheckpointError, InputError

pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

VOCABULARY = 60


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "opus-mt"
    tiny_marian(directory, vocabulary=VOCABULARY, tokenizer=True)
    return directory


@pytest.fixture
def marian(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(original, tmp_path / "opus-mt"))


def weights_changed(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


# --- forms of the same weights ---------------------------------------------------------------------------------------


def state_dict(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def as_bin(directory: Path) -> None:
    torch.save(state_dict(directory), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def as_old_bin(directory: Path) -> None:
    torch.save(state_dict(directory), directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (directory / "model.safetensors").unlink()


def as_shards(directory: Path, name: str, write: Callable[[Any, Path], object]) -> None:
    tensors = state_dict(directory)
    (directory / "model.safetensors").unlink()
    places = {key: name.replace(".", f"-0000{i % 3 + 1}-of-00003.") for i, key in enumerate(tensors)}
    for place in set(places.values()):
        write({key: tensor for key, tensor in tensors.items() if places[key] == place}, directory / place)
    write_json(directory / f"{name}.index.json", {"metadata": {}, "weight_map": places})


FORMS: dict[str, Callable[[Path], None]] = {
    "bin": as_bin,
    "old_bin": as_old_bin,
    "shards": lambda directory: as_shards(directory, "model.safetensors", save_file),
    "bin_shards": lambda directory: as_shards(directory, "pytorch_model.bin", torch.save),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_weights_gives_the_same(form: str, original: Path, marian: Path, tmp_path: Path) -> None:
    expected = import_here(original, tmp_path / "expected")
    FORMS[form](marian)
    found = import_here(marian, tmp_path / "found")
    assert (found.config, found.tokenizer) == (expected.config, expected.tokenizer)
    theirs = dict(expected.model.named_parameters())
    assert all(torch.equal(theirs[name], parameter) for name, parameter in found.model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_half_weights_stay_half(marian: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    weights_changed(marian, lambda t: t.update({key: tensor.to(dtype) for key, tensor in t.items()}))
    checkpoint = import_here(marian, tmp_path / "checkpoint")
    stored = load_file(tmp_path / "checkpoint" / "model.safetensors")
    key = "encoder.0.attention.query.weight"
    assert stored[key].dtype == (torch.float32 if dtype == torch.float64 else dtype)
    theirs = state_dict(marian)["model.encoder.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(dict(checkpoint.model.named_parameters())[key], theirs.float())


def test_the_same_import_writes_the_same_bytes(marian: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        import_here(marian, tmp_path / name)
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


# --- what is missing or damaged --------------------------------------------------------------------------------------


def test_no_weights(marian: Path) -> None:
    (marian / "model.safetensors").unlink()
    assert_refused(marian, "holds no weights", "model.safetensors", str(marian))


@pytest.mark.parametrize(("name", "write"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)])
def test_a_missing_shard(marian: Path, name: str, write: Callable[[Any, Path], object]) -> None:
    as_shards(marian, name, write)
    shard = name.replace(".", "-00002-of-00003.")
    (marian / shard).unlink()
    assert_refused(marian, f"{shard} is missing", f"{name}.index.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index(marian: Path, text: str) -> None:
    (marian / "model.safetensors").unlink()
    (marian / "model.safetensors.index.json").write_text(text)
    assert_refused(marian, str(marian), "model.safetensors.index.json")


@pytest.mark.parametrize("form", ["safetensors", "bin", "old_bin"])
def test_truncated_weights(marian: Path, form: str) -> None:
    if form != "safetensors":
        FORMS[form](marian)
    (file,) = [path for path in marian.iterdir() if path.suffix in (".safetensors", ".bin")]
    data = file.read_bytes()
    for length in (0, 7, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        assert_refused(marian, file.name)


def test_a_missing_tensor_and_one_too_many(marian: Path) -> None:
    weights_changed(
        marian, lambda t: t.update(stranger=torch.zeros(3), **{"model.encoder.adapter.weight": torch.zeros(2)})
    )
    assert_refused(marian, "does not support", "model.encoder.adapter.weight, stranger")
    weights_changed(marian, lambda t: t.pop("model.decoder.layers.1.fc1.weight"))
    assert_refused(marian, "lacks model.decoder.layers.1.fc1.weight")


def test_many_unknown_tensors_are_not_all_listed(marian: Path) -> None:
    weights_changed(marian, lambda t: t.update({f"x{i:02}": torch.zeros(1) for i in range(30)}))
    assert_refused(marian, "x07 and 22 more")


def test_a_layer_more_than_the_config_says(marian: Path) -> None:
    changed_json(marian / "config.json", encoder_layers=1, num_hidden_layers=1)
    assert_refused(marian, "does not support", "model.encoder.layers.1.")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 70}, ("60 rows", "vocab_size = 70")),
        ({"d_model": 18}, ("has shape (60, 16)", "needs (60, 18)")),
        ({"encoder_ffn_dim": 40}, ("fc1.weight has shape (24, 16)", "needs (40, 16)")),
        ({"decoder_attention_heads": 5}, ("d_model", "divisible by heads (5)")),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, ("d_model", "divisible")),
        ({"activation_function": "tanh"}, ("activation_function = 'tanh'",)),
        ({"normalize_before": True}, ("normalize_before = True",)),
        ({"add_final_layer_norm": True}, ("add_final_layer_norm = True",)),
        ({"d_model": "16"}, ("d_model must be int",)),
        ({"d_model": None}, ("lacks d_model",)),
        ({"pad_token_id": 99, "decoder_start_token_id": 99}, ("pad_id",)),
        ({"max_position_embeddings": 0}, ("max_positions",)),
        ({"tie_word_embeddings": False}, ("lacks lm_head.weight",)),
    ],
)
def test_configs_that_do_not_fit(marian: Path, fields: dict[str, Any], words: tuple[str, ...]) -> None:
    (marian / "generation_config.json").unlink()
    changed_json(marian / "config.json", **fields)
    assert_refused(marian, str(marian), *words)


def test_tied_tables_that_differ(marian: Path) -> None:
    weights_changed(marian, lambda t: t.update({"lm_head.weight": t["model.shared.weight"] + 1}))
    assert_refused(marian, "lm_head.weight differ", "ties them")


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_refused_and_leaves_nothing(marian: Path, tmp_path: Path, value: str) -> None:
    weights_changed(marian, lambda t: t["model.decoder.layers.0.fc1.weight"].view(-1)[3].fill_(float(value)))
    with pytest.raises(CheckpointError, match="model.decoder.layers.0.fc1.weight holds NaN"):
        import_here(marian, tmp_path / "checkpoint")
    assert [path.name for path in tmp_path.iterdir()] == ["opus-mt"]


# --- what would run code ---------------------------------------------------------------------------------------------


class Hostile:
    """Pickles as a call of `os.system`."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("new", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(marian: Path, tmp_path: Path, new: bool) -> None:
    state: dict[str, Any] = state_dict(marian)
    (marian / "model.safetensors").unlink()
    touched = tmp_path / "touched"
    state["model.shared.bias"] = Hostile(f"touch {touched}")
    torch.save(state, marian / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    assert_refused(marian, "pytorch_model.bin", "system", "may run code")
    assert not touched.exists()
    pickle.loads(pickle.dumps(state["model.shared.bias"]))
    assert touched.exists(), "the file is hostile indeed"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, 2], "no state dict but list"),
        ({"model.shared.weight": 5}, "'model.shared.weight' among its weights, which is not a tensor"),
        ({1: torch.zeros(2)}, "'1' among its weights, which is not a tensor"),
        ({}, "no state dict but dict"),
        (np.float64(1.5), "no state dict but a value that is not read"),
        (torch.zeros(3), "no state dict but Tensor"),
    ],
    ids=["list", "number", "numbered", "empty", "scalar", "tensor"],
)
def test_a_pickle_of_something_else(marian: Path, value: Any, words: str) -> None:
    (marian / "model.safetensors").unlink()
    torch.save(value, marian / "pytorch_model.bin")
    assert_refused(marian, "pytorch_model.bin", words)


# --- what is not supported -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("longt5", "transient global attention"),
        ("nllb-moe", "mixture of experts"),
        ("switch_transformers", "mixture of experts"),
        ("bert", "'bert' is not supported"),
        (None, "not supported"),
    ],
)
def test_other_architectures_are_named(marian: Path, kind: str | None, words: str) -> None:
    changed_json(marian / "config.json", model_type=kind)
    assert_refused(marian, words, "config.json")


def test_sources_that_are_none(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nothing", "does not exist", error=InputError)
    assert_refused(tmp_path, "--from")
    write_json(tmp_path / "config.json", {"format_version": 1, "config": {}})
    assert_refused(tmp_path, "tx-export")
    (tmp_path / "config.json").write_text("{")
    assert_refused(tmp_path, "not JSON")


# --- tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json"])
def test_without_a_tokenizer_file(marian: Path, tmp_path: Path, name: str) -> None:
    (marian / name).unlink()
    assert_refused(marian, name, "--no-tokenizer")
    checkpoint = import_here(marian, tmp_path / "checkpoint", tokenizer=False)
    assert checkpoint.tokenizer.kind == "none" and checkpoint.tokenizer.source_suffix == (0,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": 60}, "ids up to 60, but the embedding has 60 rows"),
        ({"extra": -1}, "ids up to"),
        ({"extra": 5}, "one id to two pieces"),
        ({"extra": "x"}, "not a vocabulary"),
        ({"<unk>": None}, "has no <unk>"),
    ],
)
def test_vocabularies_that_do_not_fit(marian: Path, change: dict[str, Any], words: str) -> None:
    changed_json(marian / "vocab.json", **change)
    assert_refused(marian, "vocab.json", words, "--no-tokenizer")


def test_a_tokenizer_that_is_none(marian: Path) -> None:
    (marian / "source.spm").write_bytes(b"hello")
    assert_refused(marian, "source.spm is not a SentencePiece model")


def test_languages(marian: Path, tmp_path: Path) -> None:
    checkpoint = import_here(marian, tmp_path / "checkpoint", target_language="deu")
    languages = checkpoint.tokenizer.languages
    assert languages is not None and languages.target == {"fra": 57, "deu": 58}
    assert languages.target_default == "deu" and languages.in_text
    assert_refused(marian, "--target-language xx", "fra, deu", error=InputError, target_language="xx")
    assert_refused(marian, "--source-language fra", error=InputError, source_language="fra")


def test_completed_pieces_change_no_other(marian: Path) -> None:
    """Pieces are appended to the SentencePiece file without protobuf; SentencePiece itself reads them back."""
    model = (marian / "target.spm").read_bytes()
    before = pieces_of(model, "x")
    more = ["▁Zürich", "x" * 300, before[5]]
    after = pieces_of(completed(model, before, more), "x")
    assert after == [*before, *sorted(more[:2])]
    import sentencepiece

    first, second = (
        sentencepiece.SentencePieceProcessor(model_proto=data) for data in (model, completed(model, before, more))
    )
    for text in ("the cat Zürich", "x" * 300, "le chat"):
        assert first.encode(text, out_type=str) == second.encode(text, out_type=str)
    assert second.decode_pieces(["▁the", "▁Zürich", "▁cat"]) == "the Zürich cat"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 5), min_size=1, max_size=3),
            st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
)
def test_what_is_written_in_parts_is_what_safetensors_reads(
    tensors: list[tuple[list[int], torch.dtype]], at_once: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    made = {f"t{i}": torch.randn(shape, generator=draw).to(dtype) for i, (shape, dtype) in enumerate(tensors)}

    def stored(tensor: torch.Tensor) -> Stored:
        return Stored(tuple(tensor.shape), tensor.dtype, lambda i, j: tensor[i:j], tensor.data_ptr())

    plan = ImportPlan({name: stored(tensor) for name, tensor in made.items()}, "source")
    for name in made:
        plan.take(f"our.{name}", name)
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr("txport.models.importers.plan._AT_ONCE", at_once)
        plan.write(Path(scratch) / "x.safetensors")
        found = load_file(Path(scratch) / "x.safetensors")
    assert found.keys() == {f"our.{name}" for name in made}
    assert all(torch.equal(found[f"our.{name}"], tensor) for name, tensor in made.items())
    assert all(found[f"our.{name}"].dtype == tensor.dtype for name, tensor in made.items())


# --- settings that search has not got --------------------------------------------------------------------------------


def test_notes(marian: Path) -> None:
    changed_json(
        marian / "generation_config.json", no_repeat_ngram_size=3, bad_words_ids=[[59], [3, 4]], suppress_tokens=[7]
    )
    imported = import_model(str(marian), None, ImportOptions())
    notes = " | ".join(imported.notes)
    assert "no_repeat_ngram 3" in notes and "beam 4" in notes
    assert "7, 59" in notes and "bad_words [[3, 4]]" in notes
    bias = imported.plan.parts["projection.bias"].read(0, VOCABULARY)
    assert [i for i, value in enumerate(bias.tolist()) if value == -30000] == [7, 59]
    assert bool(torch.isfinite(bias.half()).all())
    changed_json(marian / "generation_config.json", suppress_tokens=[60])
    assert_refused(marian, "bans the id 60")


# --- the command -----------------------------------------------------------------------------------------------------

RUN = "import sys; sys.argv[0] = 'tx-import'; from txport.models.entry import import_; import_()"


def run(*arguments: object, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code + RUN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **environment},
    )


def test_the_command(marian: Path, tmp_path: Path) -> None:
    output = tmp_path / "checkpoint"
    done = CliRunner().invoke(main, [str(marian), "-o", str(output), "--target-language", "fra"])
    assert done.exit_code == 0 and "imported from marian" in done.stdout, done.stderr
    assert re.search(r"^tx-import: banned ids.*59", done.stderr, re.MULTILINE) and "beam 4" in done.stderr
    assert done.stderr.endswith(f"tx-import: next: tx-export {output} -o {output}-bundle\n")
    assert load_checkpoint(output).tokenizer.languages is not None
    assert json.loads((output / "training.json").read_text())["made_by"] == "tx-import"
    with pytest.raises(InputError, match="--force"):
        main([str(marian), "-o", str(output)], standalone_mode=False)
    main([str(marian), "-o", str(output), "--force", "--no-tokenizer"], standalone_mode=False)
    assert load_checkpoint(output).tokenizer.kind == "none"


def test_help_does_not_wait_for_pytorch() -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['safetensors'] = None; "
    done = run("--help", code=code)
    assert done.returncode == 0 and done.stdout.startswith("Usage: tx-import"), done.stderr


def test_a_missing_library_is_one_sentence(marian: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['safetensors'] = None; "
    done = run(marian, "-o", tmp_path / "x", code=code)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "pip install 'txport[import]'" in done.stderr


ANOTHER_ID = """
import sys
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.runtime.errors import InputError
try:
    import_model("someone/else", None, ImportOptions())
except InputError as error:
    print("refused:", str(error).replace(chr(10), "LINE BREAK"))
"""


def test_a_hub_id(marian: Path, tmp_path: Path) -> None:
    """huggingface_hub itself, with a cache that holds the model, as after an earlier download."""
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install 'txport[dev]'")
    revision = "0" * 40
    repository = tmp_path / "cache" / "models--someone--opus-mt"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    shutil.copytree(marian, repository / "snapshots" / revision)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    done = run("someone/opus-mt", "-o", tmp_path / "checkpoint", code=ANOTHER_ID, **offline)
    assert done.returncode == 0, done.stderr
    assert load_checkpoint(tmp_path / "checkpoint").config.d_model == 16
    (refused,) = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert "someone/else is not a local file, and is not cached at main" in refused
    assert "LINE BREAK" not in refused


def test_each_format_has_an_importer() -> None:
    from txport.models.importers import IMPORTERS
    from txport.models.importers.choice import importer_of

    assert len({importer_of(kind) for kind in IMPORTERS}) == len(IMPORTERS)

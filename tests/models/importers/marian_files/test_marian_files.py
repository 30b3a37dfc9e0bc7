"""Imports of Marian's own files, against CTranslate2's converter and Marian itself, and what is refused."""

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import sentencepiece
import torch
from foreign_models import MADE, assert_refused, greedy, import_here, padded, pieces, sentencepiece_model
from marian_models import (
    EOS,
    FEW,
    INPUTS,
    ROWS,
    UNK,
    WIDTH,
    greedy_ids_of_marian,
    rows_of_ids,
    save,
    search_of_marian,
    tokens,
    write_marian,
    yaml,
)
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions
from txport.models.importers.layers import offset_sinusoids
from txport.models.importers.marian_files.yaml_files import parse_settings, read_text, read_vocabulary_file
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request
from txport.runtime.search.settings import Search
from txport.runtime.text.tokenizer import TextTokenizer, open_tokenizer
from txport.training.torch_engine import TorchEngine

PRE = {"transformer_preprocess": "n", "transformer_postprocess": "da", "transformer_postprocess_top": "n"}
GRID: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": PRE,
    "gelu": {"transformer_ffn_activation": "gelu"},
    "relu": {"transformer_ffn_activation": "relu"},
    "embedding_norm": {"transformer_postprocess_emb": "nd"},
    "untied": {"tied_embeddings_all": False},
    "tied": {"tied_embeddings_all": False, "tied_embeddings": True},
    "tied_source": {"tied_embeddings_all": False, "tied_embeddings_src": True},
    "decoder_ffn": {"transformer_decoder_dim_ffn": 40},
    "no_bias": {"output_omit_bias": True},
    "guided": {"transformer_guided_alignment_layer": 2},
}
# Options that CTranslate2's converter refuses.
MARIAN_ONLY: dict[str, dict[str, Any]] = {
    "post_final": {"transformer_postprocess_top": "n"},
    "rms": {"transformer_postprocess": "dar"},
    "tied_layers": {"transformer_tied_layers": [1, 1, 2]},
    "gelu_by_erf": {"transformer_ffn_activation": "gelu", "version": "v1.12.42 0000000 2024-01-01"},
    "order": {"transformer_postprocess": "adnd"},
}
WHOLE_GRID = bool(os.environ.get("TXPORT_WHOLE_GRID"))


def with_positions(directory: Path) -> None:
    """Give the model Marian's positions as a table: CTranslate2's converter computes others."""
    with np.load(directory / "model.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["Wpos"] = offset_sinusoids(64, WIDTH, 0).numpy()
    np.savez(directory / "model.npz", **arrays)


def converted(model: Path, directory: Path) -> Any:
    """Return CTranslate2's translator of the same model, with Marian's sinusoids."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="needs CTranslate2: pip install 'txport[dev]'")
    from ctranslate2.converters.marian import MarianConverter

    with_positions(model)
    MarianConverter(str(model / "model.npz"), [str(model / "vocab.yml")] * 2).convert(str(directory))
    config = directory / "config.json"
    config.write_text(config.read_text().replace('"layer_norm_epsilon": null', '"layer_norm_epsilon": 1e-6'))
    return ctranslate2.Translator(str(directory), compute_type="float32", inter_threads=1, intra_threads=1)


@pytest.mark.parametrize("name", GRID if WHOLE_GRID else ["post"])
def test_same_hypotheses_as_ctranslate2(name: str, tmp_path: Path) -> None:
    write_marian(tmp_path / "theirs", **GRID[name])
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours")
    translator = converted(tmp_path / "theirs", tmp_path / "converted")
    rows = rows_of_ids(INPUTS if WHOLE_GRID else FEW)
    search = Search(beam=4, n_best=4, length_penalty=0.2, early_stopping=True)
    requests = [Request([*row, 0], MADE, search=search) for row in rows]
    ours = [
        [[tokens()[each] for each in hypothesis.ids if each] for hypothesis in result.hypotheses]
        for result in decode_all(TorchEngine(checkpoint.model), requests)
    ]
    settings = {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 0.2, "max_decoding_length": MADE}
    sources = [[tokens()[each] for each in row] for row in rows]
    theirs = translator.translate_batch(sources, min_decoding_length=0, **settings)
    assert ours == [result.hypotheses for result in theirs]


@pytest.mark.parametrize("name", GRID)
def test_same_logits_and_greedy_ids_as_ctranslate2(name: str, tmp_path: Path) -> None:
    write_marian(tmp_path / "theirs", **GRID[name])
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours")
    translator = converted(tmp_path / "theirs", tmp_path / "converted")
    rows = rows_of_ids(INPUTS if WHOLE_GRID else FEW)
    results = translator.translate_batch(
        [[tokens()[each] for each in row] for row in rows],
        **{"beam_size": 1, "max_decoding_length": MADE, "min_decoding_length": 0, "return_logits_vocab": True},
    )
    ids = [[*row, 0] for row in rows]
    made = greedy(checkpoint, ids)
    assert [[tokens()[each] for each in row if each] for row in made] == [each.hypotheses[0] for each in results]
    assert len({tuple(row) for row in made}) > 5
    inputs, _ = padded([[checkpoint.config.bos_id, *row[:-1]] for row in made], checkpoint.config.pad_id)
    sources, lengths = padded(ids, checkpoint.config.pad_id)
    with torch.inference_mode():
        model = checkpoint.model
        logits = model.decode(inputs, model.encode(sources, lengths), lengths).numpy()
    for ours, result in zip(logits, results, strict=True):
        expected: npt.NDArray[np.float32] = np.array(result.logits[0], np.float32).reshape(-1, ROWS)
        np.testing.assert_allclose(ours[: len(expected), :ROWS], expected[: len(ours)], atol=1e-4)


@pytest.mark.parametrize("name", [name for name in {**GRID, **MARIAN_ONLY} if name not in ("pre", "gelu")])
def test_same_greedy_ids_as_marian(name: str, tmp_path: Path) -> None:
    """Marian translates until three times the source length; longer answers are compared up to there."""
    write_marian(tmp_path / "theirs", **{**GRID, **MARIAN_ONLY}[name])
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours")
    rows = rows_of_ids()
    expected = greedy_ids_of_marian(tmp_path / "theirs" / "model.npz", tmp_path / "theirs" / "vocab.yml", rows)
    made = greedy(checkpoint, [[*row, 0] for row in rows])
    ended = 0
    for ours, theirs, row in zip(made, expected, rows, strict=True):
        length = min(MADE, 3 * (len(row) + 1))
        ended += 0 in ours[:length]
        assert [each for each in ours[:length] if each] == theirs[:length]
    assert (ended > 1 or name in ("untied", "no_bias")) and len({tuple(row) for row in made}) > 5


@pytest.mark.parametrize("name", [name for name in {**GRID, **MARIAN_ONLY} if name not in ("pre", "gelu")])
def test_marians_search_makes_the_same_hypotheses(name: str, tmp_path: Path) -> None:
    """The imported model in Marian's search makes Marian's lists; txport's search has another rule for the end."""
    pymarian = pytest.importorskip("pymarian", reason="needs Marian: pip install pymarian")
    write_marian(tmp_path / "theirs", **{**GRID, **MARIAN_ONLY}[name])
    model = import_here(tmp_path / "theirs", tmp_path / "ours").model
    vocabulary = tmp_path / "theirs" / "vocab.yml"
    translator = pymarian.Translator(
        f"-m {tmp_path / 'theirs' / 'model.npz'} -v {vocabulary} {vocabulary} --beam-size 4 --normalize 1 --n-best "
        "--allow-unk --max-length-factor 3 --cpu-threads 1 --mini-batch 1 --quiet"
    )
    rows = rows_of_ids(INPUTS if WHOLE_GRID else FEW)
    theirs: list[list[tuple[float, list[int]]]] = [[] for _ in rows]
    for line in translator.translate([" ".join(tokens()[each] for each in row) for row in rows]):
        number, text, *_, score = line.split(" ||| ")
        theirs[int(number)].append((float(score), [tokens().index(token) for token in text.split()]))
    for row, expected in zip(rows, theirs, strict=True):
        found = search_of_marian(model, [*row, 0], 3 * (len(row) + 1))
        assert [[each for each in ids if each] for _, ids in found] == [ids for _, ids in expected]
        assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"type": "s2s"}, "type = 's2s'"),
        ({"type": "multi-transformer"}, "type = 'multi-transformer'"),
        ({"transformer_decoder_autoreg": "average-attention"}, "transformer-decoder-autoreg = 'average-attention'"),
        ({"transformer_decoder_autoreg": "rnn", "dec_cell": "ssru"}, "SSRU decoder"),
        ({"transformer_decoder_autoreg": "rnn"}, "GRU decoder"),
        ({"dim_vocabs": [ROWS, ROWS, ROWS]}, "one source and one target"),
        ({"dim_vocabs": [ROWS, ROWS + 1]}, "Wemb has shape"),
        ({"transformer_postprocess": "nda"}, "transformer-postprocess = 'nda'"),
        ({"transformer_postprocess": "dhn"}, "transformer-postprocess = 'dhn'"),
        ({"transformer_train_position_embeddings": True}, "transformer-train-position-embeddings"),
        ({"transformer_ffn_depth": 3}, "transformer-ffn-depth"),
        ({"transformer_ffn_activation": "tanh"}, "transformer-ffn-activation = 'tanh'"),
        ({"transformer_tied_layers": [1]}, "transformer-tied-layers"),
        ({"transformer_guided_alignment_layer": 9}, "transformer-guided-alignment-layer"),
        ({"transformer_guided_alignment_layer": [1]}, "transformer-guided-alignment-layer"),
        ({"dim_vocabs": [10**17, 10**17]}, "Wemb has shape"),
        ({"tied_embeddings_all": False}, "lacks encoder_Wemb"),
        ({"transformer_heads": 0}, "heads"),
        ({"dec_depth": 10**17}, "dec-depth"),
        ({"transformer_preprocess": ["n"]}, "transformer-preprocess"),
        ({"lemma_dim_emb": 128}, "lemma-dim-emb"),
        ({"input_types": ["sequence", "class"]}, "input-types"),
        ({"right_left": True}, "right-left"),
        ({"enc_depth": 3}, "lacks encoder_l3_self_Wq"),
        ({"dim_emb": "x"}, "dim-emb must be int"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = write_marian(tmp_path)
    changed = {**given, **{name.replace("_", "-"): value for name, value in options.items()}}
    with np.load(tmp_path / "model.npz") as archive:
        arrays = {name: archive[name] for name in archive.files if not name.startswith("special:")}
    save(tmp_path / "model.npz", arrays, changed)
    assert_refused(tmp_path, words, "model.npz")


def test_releases_as_zip_files(tmp_path: Path) -> None:
    write_marian(tmp_path / "opus")
    (tmp_path / "opus" / "preprocess.sh").write_text("#!/bin/bash\n")
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as archive:
        for file in sorted((tmp_path / "opus").iterdir()):
            archive.write(file, file.name)
    imported = import_model(str(tmp_path / "opus.zip"), None, ImportOptions())
    assert imported.kind == "marian-files" and any("preprocess.sh" in note for note in imported.notes)
    assert not any("normalised" in note for note in imported.notes)
    assert imported.generation.beam == 4 and imported.generation.suppress == (1,)
    assert imported.config.alignment_heads == ((2, 0),)
    ours = import_here(tmp_path / "opus.zip", tmp_path / "zip").model.state_dict()
    for name, tensor in import_here(tmp_path / "opus", tmp_path / "plain").model.state_dict().items():
        assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize(("layer", "expected"), [("last", 2), ("2", 1), ('"2"', 1)])
def test_the_guided_layer_is_a_text(layer: str, expected: int, tmp_path: Path) -> None:
    write_marian(tmp_path, transformer_guided_alignment_layer=layer)
    assert import_model(str(tmp_path), None, ImportOptions()).config.alignment_heads == ((expected, 0),)


def test_unknown_tokens_at_different_ids(tmp_path: Path) -> None:
    """Rows are exchanged so that both sides have one unknown token; the model stays the same."""
    names = (tokens(), [EOS, *tokens()[2:], UNK, "more"])
    write_marian(tmp_path / "theirs", names, tied_embeddings_all=False)
    imported = import_model(str(tmp_path / "theirs"), None, ImportOptions())
    assert imported.config.unk_id == 1 and imported.config.target_vocabulary == ROWS + 2
    with np.load(tmp_path / "theirs" / "model.npz") as archive:
        rows = archive["decoder_Wemb"]
    table = imported.plan.parts["target_embedding.tokens.weight"].read(0, ROWS + 2).numpy()
    np.testing.assert_array_equal(table[1], rows[ROWS - 1])
    np.testing.assert_array_equal(table[ROWS - 1], rows[1])
    assert not table[-1].any()


def test_vocabularies(tmp_path: Path) -> None:
    """YAML as Marian's trainers, PyYAML and yaml-cpp write it."""
    lines = ["</s>: 0", "<unk>: 1", '"\'": 2', "'\"': 3", '"\\x85": 4', "? long", ": 5", ":: 6", '"\\u2581a": 7']
    lines += ["''': ''': 8", "last: 20", "</s>: 9", ""]
    file = tmp_path / "vocab.yml"
    file.write_text("\n".join(lines), encoding="utf-8")
    expected = ["</s>", "<unk>", "'", '"', "\x85", "long", ":", "▁a", "': '", ""]
    assert read_vocabulary_file(file, 10) == expected
    for bad in ("a: b\n", "a\n", "&x a: 1\n  b\n", '"a: 1\n', "a: -1\n", "a: 1\nb: 1\n", '"\\ud800": 1\n'):
        file.write_text(bad)
        with pytest.raises(CheckpointError, match=r"vocab\.yml"):
            read_vocabulary_file(file, 10)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabularies_as_texts(end: str, tmp_path: Path) -> None:
    """Any line may end in a carriage return, as Marian reads it; a byte order mark is one only in YAML and JSON."""
    file = tmp_path / "vocab.txt"
    for last in ("", end):
        file.write_text(end.join(tokens()) + last, newline="")
        assert read_vocabulary_file(file, ROWS) == tokens()
    file.write_text("\ufeff" + end.join(tokens()), encoding="utf-8", newline="")
    with pytest.raises(CheckpointError, match=r"vocab\.txt begins with a byte order mark \(U\+FEFF\)"):
        read_vocabulary_file(file, ROWS)
    file.write_text("\r".join(tokens()), newline="")
    with pytest.raises(CheckpointError, match=r"vocab\.txt has carriage returns in most lines"):
        read_vocabulary_file(file, ROWS)
    for name, lines in (
        ("vocab.yml", [f"{token}: {index}" for index, token in enumerate(tokens())]),
        ("vocab.json", ["{", *(f'"{token}": {index},' for index, token in enumerate(tokens())), '"more": 99', "}"]),
        ("decoder.yml", ["vocabs:", "  - a", "  - b"]),
    ):
        (tmp_path / name).write_text("\ufeff" + end.join(lines), encoding="utf-8", newline="")
    assert read_vocabulary_file(tmp_path / "vocab.yml", ROWS) == tokens()
    assert read_vocabulary_file(tmp_path / "vocab.json", ROWS) == tokens()
    assert parse_settings(read_text(tmp_path / "decoder.yml"), file).fields == {"vocabs": ["a", "b"]}


def test_settings(tmp_path: Path) -> None:
    text = 'a: 1\nb:\n  []\nc:\n  - x\n  - "y z"\nd: [1, 2.5]\ne: ""\nf: true\ng: ~\n# comment\nh: n\n'
    expected = {"a": 1, "b": [], "c": ["x", "y z"], "d": [1, 2.5], "e": "", "f": True, "g": None, "h": "n"}
    assert parse_settings(text, tmp_path).fields == expected
    assert parse_settings(yaml(expected), tmp_path).fields == {**expected, "g": "None"}
    for bad in (
        "a: &x 1",
        "a: *x",
        "a: !!python/object:os.system 1",
        "a: {b: 1}",
        "- a",
        "?",
        "a: " + "[" * 9999 + "]" * 9999,
    ):
        with pytest.raises(CheckpointError, match="line 1"):
            parse_settings(bad, tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    write_marian(tmp_path)
    file = tmp_path / "model.npz"
    whole = file.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:length])
        assert_refused(tmp_path, "model.npz is not a whole .npz file")
    np.savez(file, a=np.array([{}], object))
    assert_refused(tmp_path, "model.npz: a.npy is pickled")
    np.savez(file, a=np.zeros(3, np.float32))
    assert_refused(tmp_path, "has no special:model.yml")
    np.savez_compressed(file, a=np.zeros(30 << 20, np.float32))
    assert_refused(tmp_path, "would unpack to more than")
    save(file, {"Wemb": np.full((2, 2), 1)}, "a: *b")
    assert_refused(tmp_path, "line 1 is not YAML")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", b"\x93NUMPY\x01\0\x10\0{'descr': '<f4' ")
    assert_refused(tmp_path, "a.npy is not an array")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(range(256)) * 9)
    damaged = bytearray(file.read_bytes())
    damaged[35] = 0xFF  # the first byte of the compressed data: a kind of block that does not exist
    file.write_bytes(damaged)
    assert_refused(tmp_path, "model.npz is not a whole .npz file (Error -3")
    file.unlink()
    assert_refused(tmp_path, "--from")


def test_files_that_are_missing(tmp_path: Path) -> None:
    write_marian(tmp_path)
    (tmp_path / "decoder.yml").unlink()
    assert import_model(str(tmp_path / "model.npz"), None, ImportOptions()).config.eos_id == 0
    (tmp_path / "vocab.yml").unlink()
    assert_refused(tmp_path, "vocabularies", "--no-tokenizer")
    assert import_model(str(tmp_path), None, ImportOptions(tokenizer=False)).config.unk_id == 1
    shutil.copy(tmp_path / "model.npz", tmp_path / "more.npz")
    assert_refused(tmp_path, "2 files of weights")
    (tmp_path / "decoder.yml").write_text("models:\n  - a.npz\n  - b.npz\n")
    assert_refused(tmp_path, "ensemble")
    (tmp_path / "decoder.yml").write_text("models: [../../model.npz]\nvocabs: [/etc/passwd, x.fsv]\n")
    assert_refused(tmp_path, "passwd is missing", str(tmp_path))
    (tmp_path / "passwd").write_text("</s>\n<unk>\n")
    (tmp_path / "x.fsv").write_text("</s>\n<unk>\n")
    assert_refused(tmp_path, "factored vocabulary")
    with pytest.raises(InputError):
        import_model(str(tmp_path), None, ImportOptions(heads=2))


@pytest.mark.parametrize("vocabulary", ["yml", "spm"])
def test_texts_have_the_ids_of_the_vocabulary(vocabulary: str, tmp_path: Path) -> None:
    """vocab.yml with source.spm and target.spm, as OPUS-MT has them, or a SentencePiece model as the vocabulary."""
    model = sentencepiece_model()
    names = [EOS, UNK, *(piece for piece in pieces(model) if piece not in (EOS, UNK, "<s>")), ">>fra<<"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    if vocabulary == "spm":
        names = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    write_marian(tmp_path / "theirs", (names, names))
    for name in ("source.spm", "target.spm"):
        (tmp_path / "theirs" / name).write_bytes(model)
    if vocabulary == "spm":
        decoder = {"models": ["model.npz"], "vocabs": ["source.spm", "target.spm"]}
        (tmp_path / "theirs" / "decoder.yml").write_text(yaml(decoder))
    checkpoint = import_here(tmp_path / "theirs", tmp_path / "ours")
    text = "the big cat sees le chien"
    expected = [names.index(piece) for piece in processor.encode(text, out_type=str)]
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.tokenizer, checkpoint.config.vocabularies)
    assert isinstance(tokenizer, TextTokenizer) and tokenizer.encode(text) == [*expected, names.index(EOS)]
    if vocabulary == "yml":
        assert tokenizer.encode(f">>fra<< {text}") == [names.index(">>fra<<"), *expected, 0]


@pytest.mark.parametrize("name", ["model.npz", "decoder.yml", "vocab.yml", "opus.zip"])
def test_damage_anywhere(name: str, tmp_path: Path) -> None:
    """Truncated files and changed bytes: a model, or one sentence with a name of a file."""
    write_marian(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "opus.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tmp_path / "model").iterdir()):
            archive.write(file, file.name)
    source = tmp_path / "model" if name != "opus.zip" else tmp_path / name
    file = source if source.is_file() else source / name
    whole = file.read_bytes()
    draw = np.random.default_rng(0)
    ends = {*draw.integers(0, len(whole), 20).tolist()}
    if name.endswith((".npz", ".zip")):
        with zipfile.ZipFile(file) as archive:
            starts = [member.header_offset for member in archive.infolist()]
            ends |= {int(start) + more for start in draw.choice(starts, min(8, len(starts))) for more in (0, 4, 30, 60)}
            ends.add(archive.start_dir)
    changes = [whole[:end] for end in sorted(ends)]
    for position in [*draw.integers(0, len(whole), 20), *draw.integers(max(0, len(whole) - 3000), len(whole), 20)]:
        changes.append(whole[:position] + bytes([whole[position] ^ int(draw.integers(1, 256))]) + whole[position + 1 :])
    refused = 0
    for changed in changes:
        file.write_bytes(changed)
        try:
            imported = import_model(str(source), None if source.is_dir() else "marian-files", ImportOptions())
            for part in imported.plan.parts.values():
                part.read(0, part.shape[0])
        except (CheckpointError, InputError) as error:
            refused += 1
            assert str(tmp_path) in str(error) and "\n" not in str(error), error
    assert refused > (5 if name != "opus.zip" else 20)

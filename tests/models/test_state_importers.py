"""Decoders of TrOCR, Donut and Whisper against Hugging Face, given the same encoder states: logits, greedy, beams."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner
from foreign_models import import_here, write_json
from state_models import DECODER, EOS, START, VOCABULARY, bart, mbart, sinusoidal_trocr, trocr, vision, whisper
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint
from txport.models.importers.command import main
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.translator import Translator

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")


COUNT = 200
LONGEST = 12  # target tokens
States = npt.NDArray[np.float32]
MODELS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "trocr": (trocr, 24),
    "trocr_scaled": (lambda directory: trocr(directory, scale_embedding=True, activation_function="relu"), 24),
    "trocr_with_sinusoids": (sinusoidal_trocr, 24),
    "trocr_without_norm": (lambda directory: trocr(directory, layernorm_embedding=False), 24),
    "donut": (mbart, 32),
    "donut_with_a_bridge": (lambda directory: mbart(directory, hidden=24), 24),
    "whisper": (whisper, 32),
}


SIZES = {"decoder_layers": 3, "decoder_ffn_dim": 20, "vocab_size": 61, "activation_function": "relu"}
# Settings whose logits are compared, and no search.
VARIANTS: dict[str, tuple[Callable[[Path], Any], int]] = {
    **MODELS,
    "trocr_of_other_sizes": (lambda directory: trocr(directory, **SIZES, max_position_embeddings=17), 24),
    "trocr_untied": (lambda directory: trocr(directory, tie_word_embeddings=False), 24),
    "trocr_with_a_bridge": (lambda directory: trocr(directory, cross_attention_hidden_size=None), 24),
    "trocr_with_sinusoids_and_norm": (
        lambda directory: trocr(directory, use_learned_position_embeddings=False, max_position_embeddings=17),
        24,
    ),
    "donut_of_other_sizes": (lambda directory: mbart(directory, **SIZES, encoder_layers=3, scale_embedding=False), 32),
    "donut_untied": (lambda directory: mbart(directory, tie_word_embeddings=False), 32),
    "bart": (bart, 32),
    "bart_with_a_bridge": (lambda directory: bart(directory, hidden=20, scale_embedding=True), 20),
    "whisper_of_other_sizes": (lambda directory: whisper(directory, **SIZES, max_target_positions=13), 32),
    "whisper_scaled": (lambda directory: whisper(directory, scale_embedding=True), 32),
    "whisper_with_five_heads": (
        lambda directory: whisper(directory, d_model=40, decoder_attention_heads=5, encoder_attention_heads=5),
        40,
    ),
}
LENGTHS = (3, 8, 14)


def states(count: int, size: int, seed: int = 0) -> list[States]:
    """Random states of a few lengths, so that Hugging Face can read those of one length at once without padding."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((LENGTHS[number % 3], size), np.float32) for number in range(count)]


def decode(
    model: Any, arrays: Sequence[States], prefix: Sequence[int] = (), longest: int = LONGEST, **options: Any
) -> list[list[int]]:
    """`generate` of Hugging Face from these states: what follows bos."""
    found: dict[int, list[int]] = {}
    for length in LENGTHS:
        rows = [number for number, array in enumerate(arrays) if len(array) == length]
        if not rows:
            continue
        memory = transformers.modeling_outputs.BaseModelOutput(
            last_hidden_state=torch.from_numpy(np.stack([arrays[row] for row in rows]))
        )
        start = torch.tensor([[START, *prefix]] * len(rows))
        made = transformers.GenerationMixin.generate(
            model, decoder_input_ids=start, encoder_outputs=memory, max_new_tokens=longest, do_sample=False, **options
        )
        for row, ids in zip(rows, made[:, 1:].tolist(), strict=True):
            found[row] = ids[: ids.index(EOS) + 1] if EOS in ids else ids
    return [found[row] for row in range(len(arrays))]


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_logits_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    make, size = VARIANTS[name]
    theirs = make(tmp_path / "model")
    ours = import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False)
    config = ours.config
    assert (
        config.reads_states
        and config.feature_size == size
        and config.frame_rate == (50.0 if name.startswith("whisper") else None)
    )
    targets = torch.randint(3, VOCABULARY, (6, 9), generator=torch.Generator().manual_seed(1))
    targets[:, 0] = START
    memory = torch.from_numpy(np.stack([states(1, size, seed)[0][:1].repeat(5, 0) for seed in range(6)]))
    memory = memory + torch.randn(memory.shape, generator=torch.Generator().manual_seed(2))
    memory = memory.double()  # sharp attention makes 1e-4 of the rounding errors of float32
    expected = theirs.double()(encoder_outputs=(memory,), decoder_input_ids=targets).logits
    found = ours.model.double()(memory, torch.full((6,), 5), targets)
    assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_greedy_and_beams_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    make, size = MODELS[name]
    theirs = make(tmp_path / "model")
    import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False)
    report = export_bundle(
        tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(lowerings=("ort",), sentences=16)
    )
    assert report is not None and report.passed
    translator = Translator(tmp_path / "bundle", "cpu", threads=1)
    arrays = states(COUNT, size)
    ours = translator.translate_features(arrays, max_length=LONGEST, generation="model")
    expected = decode(theirs, arrays)
    assert [each.ids for each in ours] == expected
    assert len({tuple(ids) for ids in expected}) > COUNT / 4
    beams = translator.translate_features(arrays, max_length=LONGEST, generation="model", beam=4)
    assert [each.ids for each in beams] == decode(theirs, arrays, num_beams=4)


@pytest.mark.parametrize("outer", [{}, {"num_beams": 2}, {"no_repeat_ngram_size": None, "num_beams": 4}])
def test_settings_of_a_nested_config(outer: dict[str, Any], tmp_path: Path) -> None:
    """Without a generation_config.json, `generate` reads those of the decoder that the outer config does not have."""
    trocr(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink()
    file = tmp_path / "model" / "config.json"
    fields = json.loads(file.read_text())
    fields["decoder"] |= {"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 0.5, "forced_bos_token_id": 9}
    write_json(file, {**fields, **outer})
    theirs = transformers.VisionEncoderDecoderModel.from_pretrained(tmp_path / "model").generation_config
    checkpoint = import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False)
    ours = checkpoint.generation
    assert (ours.beam, ours.no_repeat_ngram, ours.length_penalty, *checkpoint.tokenizer.target_prefix) == (
        theirs.num_beams,
        theirs.no_repeat_ngram_size,
        theirs.length_penalty,
        theirs.forced_bos_token_id,
    )


def test_language_and_task_of_whisper_are_forced(tmp_path: Path) -> None:
    whisper(tmp_path / "model")
    import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False, source_language="de")
    assert load_checkpoint(tmp_path / "checkpoint").tokenizer.target_prefix == (21, 22, 23)
    with pytest.raises(InputError, match="--source-language fr is not one of this model: there are de, en; choose"):
        import_here(tmp_path / "model", tmp_path / "other", tokenizer=False, source_language="fr")


def test_whisper_without_a_language_forces_nothing(tmp_path: Path) -> None:
    """As published, multilingual models force the task after an unknown language, which Hugging Face detects."""
    whisper(tmp_path / "model")
    file = tmp_path / "model" / "generation_config.json"
    fields = json.loads(file.read_text())
    write_json(file, {**fields, "forced_decoder_ids": [[1, None], [2, 22]]})
    arguments = [str(tmp_path / "model"), "-o", str(tmp_path / "checkpoint"), "--no-tokenizer"]
    assert (
        "no language is set: give --source-language, or begin each output" in CliRunner().invoke(main, arguments).stderr
    )
    assert load_checkpoint(tmp_path / "checkpoint").tokenizer.target_prefix == ()
    fields = {name: value for name, value in fields.items() if name not in ("lang_to_id", "task_to_id")}
    write_json(file, {**fields, "forced_decoder_ids": [[1, 23]]})  # as models for English only have it
    import_here(tmp_path / "model", tmp_path / "english", tokenizer=False)
    assert load_checkpoint(tmp_path / "english").tokenizer.target_prefix == (23,)


def test_whisper_begins_and_suppresses_as_hugging_face(tmp_path: Path) -> None:
    """Language, task and no timestamps are forced; the first token after them follows rules of its own."""
    theirs = whisper(tmp_path / "model")
    theirs.generation_config.is_multilingual = True
    import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False, source_language="de")
    options = ExportOptions(lowerings=("ort",), beams=True, sentences=16)
    report = export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    assert report is not None and report.passed
    prefix = [21, 22, 23]
    arrays = states(COUNT, 32)
    expected = decode(theirs, arrays, prefix)
    hypotheses = decode(theirs, arrays, prefix, num_beams=4)
    for name in ("ort", "auto"):
        translator = Translator(tmp_path / "bundle", "cpu", name, threads=1)
        settings = {"max_length": len(prefix) + LONGEST, "generation": "model"}
        assert [each.ids for each in translator.translate_features(arrays, **settings)] == expected
        beams = translator.translate_features(arrays, beam=4, **settings)
        assert [each.ids for each in beams] == hypotheses
    theirs.generation_config.suppress_tokens = theirs.generation_config.begin_suppress_tokens = None
    plain = decode(theirs, arrays, prefix)
    assert {7, 9} & {token for ids in plain for token in ids}, "else nothing is suppressed"
    assert 11 in [ids[3] for ids in plain] and any(11 in ids[4:] for ids in expected)


MULTILINGUAL = {"task_to_id": {"transcribe": 22, "translate": 24}}
ENGLISH = {"lang_to_id": None, "task_to_id": None}  # as if they were missing
PROMPTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "language": ({}, {"source_language": "de"}, [21, 22, 23]),
    "translation": (MULTILINGUAL, {"source_language": "de", "target_language": "en"}, [21, 24, 23]),
    "target of transcription": (MULTILINGUAL, {"source_language": "de", "target_language": "de"}, [21, 22, 23]),
    "timestamps": ({}, {"source_language": "de", "timestamps": True}, [21, 22]),
    "language of the model": ({"language": "de"}, {}, [21, 22, 23]),
    "token of the model": ({**MULTILINGUAL, "language": "<|de|>", "task": "translate"}, {}, [21, 24, 23]),
    "another language": ({"language": "de"}, {"source_language": "en"}, [20, 22, 23]),
    "timestamps of the model": ({"language": "de", "return_timestamps": True}, {}, [21, 22]),
    "forced ids": ({"forced_decoder_ids": [[1, 20], [2, 22]]}, {}, [20, 22, 23]),
    "forced without timestamps": ({"forced_decoder_ids": [[1, 20], [2, 22], [3, 23]]}, {}, [20, 22, 23]),
    "forced ids and a language": ({"forced_decoder_ids": [[1, 20]]}, {"source_language": "de"}, [21, 22, 23]),
    "English": (ENGLISH, {}, [23]),
    "English, forced": ({**ENGLISH, "forced_decoder_ids": [[1, 23]]}, {}, [23]),
    "English, timestamps": ({**ENGLISH, "forced_decoder_ids": [[1, 23]]}, {"timestamps": True}, []),
    "a task alone": ({**ENGLISH, "forced_decoder_ids": [[1, None], [2, 22]]}, {}, [22, 23]),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_of_whisper_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    changes, options, expected = PROMPTS[name]
    whisper(tmp_path / "model")
    file = tmp_path / "model" / "generation_config.json"
    fields = {**json.loads(file.read_text()), **changes}
    write_json(file, {key: value for key, value in fields.items() if value is not None})
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "model")
    settings = theirs.generation_config
    if "source_language" in options:
        settings.language = options["source_language"]
        settings.task = "translate" if options.get("target_language") == "en" else None
    settings.return_timestamps = options.get("timestamps", changes.get("return_timestamps", False))
    found = theirs._retrieve_init_tokens(None, 1, settings, theirs.config, 3000, {})
    assert found[0].tolist() == [START, *expected]
    checkpoint = import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False, **options)
    assert list(checkpoint.tokenizer.target_prefix) == expected
    assert (23 in (checkpoint.generation.suppress or ())) == (23 not in expected)
    assert not checkpoint.generation.unsupported


def test_timestamps_are_tokens(tmp_path: Path) -> None:
    """The ids after <|notimestamps|>, 23, are times. Hugging Face's rules for pairs of times do not apply."""
    theirs = whisper(tmp_path / "model")
    import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False, source_language="de", timestamps=True)
    options = ExportOptions(lowerings=("ort",), beams=True, verify=False)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", options)
    theirs.generation_config.suppress_tokens = [7, 9, 23]
    arrays = states(COUNT, 32)
    expected, hypotheses = (decode(theirs, arrays, [21, 22], num_beams=beam) for beam in (1, 4))
    assert sum(token > 23 for ids in expected for token in ids) > COUNT
    for name in ("ort", "fused"):
        translator = Translator(tmp_path / "bundle", "cpu", name, threads=1)
        settings = {"max_length": 2 + LONGEST, "generation": "model"}
        assert [each.ids for each in translator.translate_features(arrays, **settings)] == expected
        assert [each.ids for each in translator.translate_features(arrays, beam=4, **settings)] == hypotheses


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (whisper, ["--target-language", "en"], "--target-language en needs --source-language, the spoken language"),
        (
            whisper,
            ["--source-language", "de", "--target-language", "fr"],
            "--target-language fr is not one of this model: it transcribes, or translates to en",
        ),
        (
            whisper,
            ["--source-language", "de", "--target-language", "en"],
            "--target-language en is not one of this model: it transcribes",
        ),
        (trocr, ["--target-language", "en"], "--target-language en means nothing for .*, which has none: leave it out"),
        (mbart, ["--timestamps"], "--timestamps has no effect with a model of vision: leave it out"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    make: Callable[[Path], Any], options: list[str], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "model")
    arguments = [str(tmp_path / "model"), "-o", str(tmp_path / "checkpoint"), "--no-tokenizer", *options]
    assert re.fullmatch(message, str(CliRunner().invoke(main, arguments).exception))


def test_a_language_needs_no_tokenizer(tmp_path: Path) -> None:
    """Whisper's prompt is ids."""
    whisper(tmp_path / "model")
    arguments = [str(tmp_path / "model"), "-o", str(tmp_path / "checkpoint"), "--no-tokenizer", "--source-language"]
    assert CliRunner().invoke(main, [*arguments, "de"]).exit_code == 0
    assert load_checkpoint(tmp_path / "checkpoint").tokenizer.target_prefix == (21, 22, 23)


def test_whispers_own_generate_makes_the_same(tmp_path: Path) -> None:
    """Given the language and the task. No id is a timestamp, by which it would go on to later states."""
    theirs = whisper(tmp_path / "model")
    theirs.generation_config.is_multilingual = True
    theirs.generation_config.no_timestamps_token_id = VOCABULARY - 1
    for array in states(6, 32):
        memory = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.from_numpy(array[None]))
        made = theirs.generate(
            encoder_outputs=memory, language="de", task="transcribe", max_new_tokens=LONGEST, num_beams=1
        )
        (ids,) = decode(theirs, [array], [21, 22, VOCABULARY - 1])
        assert made[0].tolist() == [token for token in ids[3:] if token != EOS]


@pytest.mark.parametrize("encoder", [None, "openai/whisper-tiny"])
def test_the_encoder_to_run_is_named(encoder: str | None, tmp_path: Path) -> None:
    """By a note, and in training.json, the manifest and the model card."""
    whisper(tmp_path / "model")
    options = [] if encoder is None else ["--encoder", encoder]
    arguments = [str(tmp_path / "model"), "-o", str(tmp_path / "checkpoint"), "--no-tokenizer", *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    name = encoder or "model"  # the directory
    note = (
        f"the encoder is {name}: run it with the library of your choice, and give its last hidden states, [states, 32]"
    )
    assert note in result.stderr
    notes = json.loads((tmp_path / "checkpoint" / "training.json").read_text())["notes"]
    assert any(note in each for each in notes)
    export_bundle(tmp_path / "checkpoint", tmp_path / "bundle", ExportOptions(lowerings=("ort",), verify=False))
    assert Manifest.load(tmp_path / "bundle").external_encoder == name
    row = f"| input | last hidden states of an external encoder, {name}: 32 numbers each, 50 per second |"
    assert row in (tmp_path / "bundle" / "README.md").read_text().splitlines()


def test_an_encoder_of_a_model_that_has_one_is_refused(tmp_path: Path) -> None:
    fields = {name: value for name, value in DECODER.items() if name != "max_position_embeddings"}
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "max_position_embeddings": 40}
    bart = transformers.BartForConditionalGeneration(transformers.BartConfig(**fields, **sizes))
    bart.save_pretrained(tmp_path / "m")
    arguments = [str(tmp_path / "m"), "-o", str(tmp_path / "checkpoint"), "--no-tokenizer", "--encoder", "other"]
    found = str(CliRunner().invoke(main, arguments).exception)
    assert re.fullmatch(r"--encoder other has no effect: .* \(bart\) has an encoder; leave it out", found)


def test_other_decoders_are_refused(tmp_path: Path) -> None:
    vision(
        tmp_path / "gpt2",
        transformers.GPT2Config(
            vocab_size=50, n_embd=16, n_layer=1, n_head=2, is_decoder=True, add_cross_attention=True
        ),
    )
    with pytest.raises(
        CheckpointError, match="decoder.model_type 'gpt2' is not supported: there are trocr, mbart, bart"
    ):
        import_here(tmp_path / "gpt2", tmp_path / "checkpoint", tokenizer=False)
    mbart(tmp_path / "donut")
    with pytest.raises(
        CheckpointError, match="has no tokenizer.json: save its tokenizer there, or give --no-tokenizer"
    ):
        import_here(tmp_path / "donut", tmp_path / "checkpoint")

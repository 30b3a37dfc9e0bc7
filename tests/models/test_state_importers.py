"""Decoders of TrOCR, Donut and Whisper against Hugging Face, given the same encoder states: logits, greedy, beams."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from foreign_models import import_here, shake, write_json
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.checkpoint import load_checkpoint
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.translator import Translator

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'txport[dev]'")

PAD, EOS, START = 1, 2, 2
VOCABULARY = 50
COUNT = 200
LONGEST = 12  # target tokens
States = npt.NDArray[np.float32]
DECODER = {
    **{
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 48,
    },
    **{"max_position_embeddings": 40, "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": 0},
    **{"decoder_start_token_id": START},
}


def vision(directory: Path, decoder: Any, *, hidden: int = 24, seed: int = 0) -> Any:
    """A tiny ViT before this decoder, with random weights."""
    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 8,
        "patch_size": 4,
    }
    encoder = transformers.ViTConfig(hidden_size=hidden, **sizes)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = START, PAD, EOS
    model = transformers.VisionEncoderDecoderModel(config).eval()
    shake(model, seed, scale=1.6)
    model.generation_config.decoder_start_token_id = START
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, EOS
    model.save_pretrained(directory)
    return model


def trocr(directory: Path, **changes: Any) -> Any:
    return vision(directory, transformers.TrOCRConfig(**{**DECODER, "cross_attention_hidden_size": 24, **changes}))


def sinusoidal_trocr(directory: Path) -> Any:
    """The large models'. Padding is never made: Hugging Face does not count it in positions."""
    options = {"use_learned_position_embeddings": False, "layernorm_embedding": False, "scale_embedding": True}
    model = trocr(directory, **options)
    model.generation_config.suppress_tokens = [PAD]
    model.save_pretrained(directory)
    return model


def mbart(directory: Path, hidden: int = 32, **changes: Any) -> Any:
    """Donut's and Nougat's."""
    fields = {"is_decoder": True, "add_cross_attention": True, "add_final_layer_norm": True, "scale_embedding": True}
    config = transformers.MBartConfig(**{**DECODER, **fields, "encoder_layers": 2, **changes})
    return vision(directory, config, hidden=hidden)


def whisper(directory: Path, **changes: Any) -> Any:
    fields = {name: value for name, value in DECODER.items() if name != "max_position_embeddings"}
    sizes = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "num_mel_bins": 8}
    config = transformers.WhisperConfig(
        **{
            **fields,
            **sizes,
            "max_source_positions": 20,
            "max_target_positions": 40,
            **changes,
        }
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()
    shake(model, 3, scale=1.6, but="encoder.embed_positions")
    model.tie_weights()
    generation = transformers.GenerationConfig(
        decoder_start_token_id=START, pad_token_id=PAD, eos_token_id=EOS, suppress_tokens=[7, 9],
        begin_suppress_tokens=[11], lang_to_id={"<|en|>": 20, "<|de|>": 21}, task_to_id={"transcribe": 22},
        no_timestamps_token_id=23,
    )  # fmt: skip
    model.generation_config = generation
    model.save_pretrained(directory)
    return model


MODELS: dict[str, tuple[Callable[[Path], Any], int]] = {
    "trocr": (trocr, 24),
    "trocr_scaled": (lambda directory: trocr(directory, scale_embedding=True, activation_function="relu"), 24),
    "trocr_with_sinusoids": (sinusoidal_trocr, 24),
    "trocr_without_norm": (lambda directory: trocr(directory, layernorm_embedding=False), 24),
    "donut": (mbart, 32),
    "donut_with_a_bridge": (lambda directory: mbart(directory, hidden=24), 24),
    "whisper": (whisper, 32),
}


LENGTHS = (3, 8, 14)


def states(count: int, size: int, seed: int = 0) -> list[States]:
    """Random states of a few lengths, so that Hugging Face can read those of one length at once without padding."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((LENGTHS[number % 3], size), np.float32) for number in range(count)]


def decode(model: Any, arrays: Sequence[States], **options: Any) -> list[list[int]]:
    """`generate` of Hugging Face from these states."""
    found: dict[int, list[int]] = {}
    for length in LENGTHS:
        rows = [number for number, array in enumerate(arrays) if len(array) == length]
        memory = transformers.modeling_outputs.BaseModelOutput(
            last_hidden_state=torch.from_numpy(np.stack([arrays[row] for row in rows]))
        )
        start = torch.full((len(rows), 1), START)
        made = transformers.GenerationMixin.generate(
            model, decoder_input_ids=start, encoder_outputs=memory, max_new_tokens=LONGEST, do_sample=False, **options
        )
        for row, ids in zip(rows, made[:, 1:].tolist(), strict=True):
            found[row] = ids[: ids.index(EOS) + 1] if EOS in ids else ids
    return [found[row] for row in range(len(arrays))]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    make, size = MODELS[name]
    theirs = make(tmp_path / "model")
    ours = import_here(tmp_path / "model", tmp_path / "checkpoint", tokenizer=False)
    config = ours.config
    assert (
        config.reads_states
        and config.feature_size == size
        and config.frame_rate == (50.0 if name == "whisper" else None)
    )
    targets = torch.randint(3, VOCABULARY, (6, 9), generator=torch.Generator().manual_seed(1))
    targets[:, 0] = START
    memory = torch.from_numpy(np.stack([states(1, size, seed)[0][:1].repeat(5, 0) for seed in range(6)]))
    memory = memory + torch.randn(memory.shape, generator=torch.Generator().manual_seed(2))
    expected = theirs(encoder_outputs=(memory,), decoder_input_ids=targets).logits
    found = ours.model(memory, torch.full((6,), 5), targets)
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
    with pytest.raises(InputError, match="--source-language fr is not one of this model: there are de, en"):
        import_here(tmp_path / "model", tmp_path / "other", tokenizer=False, source_language="fr")


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

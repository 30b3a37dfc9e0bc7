"""Whisper's decoder compared with Hugging Face and CTranslate2, for the same encoder states.

`python -m txport.benchmarks.studies.whisper_decoder`, with transformers and ctranslate2 installed. Weights are random,
with the sizes of the published models. The end token is suppressed, so that all generate the same number of tokens.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from txport.benchmarks.studies.turns import in_turns
from txport.exporter.export import ExportOptions, export_bundle
from txport.models.importers.choice import import_model
from txport.models.importers.imported import ImportOptions, write_imported
from txport.runtime import Translator

# Width, layers and heads of the decoder; the feed-forward layers have four times the width.
SIZES = {"tiny": (384, 4, 6), "base": (512, 6, 8), "small": (768, 12, 12)}
VOCABULARY = 51_865
EOS = 50_257
START = 50_258
NO_TIMESTAMPS = 50_363
NAMES = {EOS: "<|endoftext|>", START: "<|startoftranscript|>", NO_TIMESTAMPS: "<|notimestamps|>"}
Ids = list[list[int]]


def random_whisper(directory: Path, size: str, states: int) -> Any:
    """Write a Whisper of random weights and return Hugging Face's model."""
    import transformers  # type: ignore[import-untyped, unused-ignore]

    torch.manual_seed(0)
    width, layers, heads = SIZES[size]
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=width,
        encoder_layers=1,
        encoder_attention_heads=heads,
        encoder_ffn_dim=width,
        decoder_layers=layers,
        decoder_attention_heads=heads,
        decoder_ffn_dim=4 * width,
        max_source_positions=states,
    )
    model = transformers.WhisperForConditionalGeneration(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():  # as in random_checkpoint, earlier tokens must have more weight than the last one
        for name, parameter in model.model.decoder.named_parameters():
            if parameter.dim() > 1 and ("out_proj" in name or "fc2" in name):
                parameter.mul_(12)
    model.generation_config = transformers.GenerationConfig(  # type: ignore[no-untyped-call]
        decoder_start_token_id=START,
        pad_token_id=EOS,
        eos_token_id=EOS,
        forced_decoder_ids=[[1, NO_TIMESTAMPS]],
    )
    model.save_pretrained(directory)
    return model


def bundles(model: Path, directory: Path) -> dict[str, Path]:
    """Import and export the model, in float32 and int8, without verification, since the weights are random."""
    write_imported(
        import_model(str(model), None, ImportOptions(tokenizer=False)), directory / "checkpoint", "", replace=False
    )
    for name in ("float32", "int8"):
        options = ExportOptions(int8=name == "int8", lowerings=("ort",), beams=True, verify=False)
        export_bundle(directory / "checkpoint", directory / name, options)
    return {name: directory / name for name in ("float32", "int8")}


def converted(model: Any, directory: Path) -> Path:
    """Write the model in CTranslate2's format by CTranslate2's converter."""
    from ctranslate2.converters.transformers import WhisperLoader  # type: ignore[import-untyped, unused-ignore]

    spec = WhisperLoader().get_model_spec(model)
    spec.register_vocabulary([NAMES.get(token, f"t{token}") for token in range(VOCABULARY)])
    spec.config.suppress_ids = [EOS]
    spec.config.suppress_ids_begin = []
    spec.config.lang_ids = []
    spec.config.alignment_heads = [(0, 0)]
    spec.validate()
    directory.mkdir()
    spec.save(str(directory))
    return directory


def contestants(
    directory: Path, size: str, states: np.ndarray, tokens: int, beam: int, threads: int
) -> dict[str, Callable[[], Ids]]:
    """Return the calls to compare, by name; each returns the ids of its best answers."""
    import ctranslate2
    import transformers

    model = random_whisper(directory / "model", size, states.shape[1])
    memory = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.from_numpy(states))
    start = torch.tensor([[START, NO_TIMESTAMPS]]).repeat(len(states), 1)

    def hugging_face() -> Ids:
        generated = transformers.GenerationMixin.generate(
            model,
            decoder_input_ids=start,
            encoder_outputs=memory,
            max_new_tokens=tokens,
            num_beams=beam,
            do_sample=False,
            suppress_tokens=[EOS],
        )
        return [list(row) for row in generated[:, 2:].tolist()]

    def ours(translator: Translator) -> Callable[[], Ids]:
        options: dict[str, Any] = {"suppress": [EOS], "max_length": tokens + 1}
        if beam > 1:
            options["beam"] = beam
        return lambda: [each.ids[1:] for each in translator.translate_features(list(states), **options)]

    def theirs(kind: str) -> Callable[[], Ids]:
        whisper = ctranslate2.models.Whisper(
            str(directory / "ctranslate2"), device="cpu", compute_type=kind, intra_threads=threads
        )
        # CTranslate2 generates at most half of max_length.
        options = {"beam_size": beam, "max_length": 2 * tokens, "suppress_blank": False, "suppress_tokens": [EOS]}
        features = ctranslate2.StorageView.from_array(states)
        prompts = [[START, NO_TIMESTAMPS]] * len(states)
        return lambda: [each.sequences_ids[0] for each in whisper.generate(features, prompts, **options)]

    calls: dict[str, Callable[[], Ids]] = {"Hugging Face float32": hugging_face}
    converted(model, directory / "ctranslate2")
    for kind, bundle in bundles(directory / "model", directory).items():
        for engine in ("fused", "ort"):
            calls[f"txport {engine} {kind}"] = ours(Translator(bundle, "cpu", engine, threads=threads))
        calls[f"CTranslate2 {kind}"] = theirs(kind)
    return calls


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="base", show_default=True)
@click.option(
    "--states", default=1500, show_default=True, help="Number of encoder states; one second of speech has 50."
)
@click.option("--tokens", default=64, show_default=True, help="Number of tokens to generate.")
@click.option("--batch", default=1, show_default=True)
@click.option("--beam", default=1, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--processor-time", is_flag=True, help="Measure processor time, for busy machines with --threads 1.")
def main(
    size: str, states: int, tokens: int, batch: int, beam: int, threads: int, rounds: int, processor_time: bool
) -> None:
    """Print the median time of each library, its ratio to the fused engine in float32, and how many answers agree."""
    torch.set_num_threads(threads)
    vectors = np.random.default_rng(0).standard_normal((batch, states, SIZES[size][0]), np.float32)
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        calls = contestants(Path(scratch), size, vectors, tokens, beam, threads)
        answers = {name: call() for name, call in calls.items()}
        clock = time.process_time if processor_time else time.perf_counter
        times = dict(zip(calls, np.median(in_turns(list(calls.values()), rounds, 0, clock), axis=0), strict=True))
    click.echo(
        f"{size}, {batch} x {states} states, {tokens} tokens, beam {beam}, {threads} threads, {rounds} rounds, "
        f"{'processor' if processor_time else 'elapsed'} time"
    )
    for name, milliseconds in times.items():
        same = sum(a == b for a, b in zip(answers[name], answers["Hugging Face float32"], strict=True))
        ratio = milliseconds / times["txport fused float32"]
        click.echo(f"{name:24} {milliseconds:9.1f} ms  {ratio:5.2f}  {same} of {batch} as Hugging Face")


if __name__ == "__main__":
    main()

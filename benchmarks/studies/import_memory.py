"""How much memory `tx-import` takes, on a random checkpoint of the shape of NLLB-200's 600M model or of an OPUS-MT one.

    python -m txport.benchmarks.studies.import_memory [--shape nllb] [--keep DIRECTORY]

Prints the size of the weights, the peak resident memory of the command and their ratio. Disk: twice the weights.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SHAPES: dict[str, dict[str, Any]] = {
    "nllb": {"model_type": "m2m_100", "d_model": 1024, "layers": 12, "ffn": 4096, "heads": 16, "vocab_size": 256206},
    "marian": {"model_type": "marian", "d_model": 512, "layers": 6, "ffn": 2048, "heads": 8, "vocab_size": 58101},
}

# The command, and then the peak of its own memory: rusage would begin with that of the process which started it.
RUN = """
import atexit, re, sys
from txport.models.entry import import_
atexit.register(lambda: print(re.search("VmHWM:.*", open("/proc/self/status").read()).group(), flush=True))
sys.argv[0] = "tx-import"
import_()
"""


def write_model(directory: Path, shape: str) -> int:
    """A Hugging Face directory without a tokenizer, its weights in half-gigabyte shards; the bytes of its weights."""
    given = SHAPES[shape]
    sides = ("encoder", "decoder")
    config = {
        **{f"{side}_layers": given["layers"] for side in sides},
        **{f"{side}_ffn_dim": given["ffn"] for side in sides},
        **{f"{side}_attention_heads": given["heads"] for side in sides},
        **{key: given[key] for key in ("model_type", "d_model", "vocab_size")},
        **{"activation_function": "relu", "max_position_embeddings": 512, "scale_embedding": True},
        **{"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2},
    }
    (directory / "config.json").write_text(json.dumps(config))
    places: dict[str, str] = {}
    total, waiting = 0, {}
    shapes = list(_shapes(given))
    for name, size in shapes:
        waiting[name] = 0.02 * torch.randn(size)
        total += 4 * waiting[name].numel()
        if sum(tensor.numel() for tensor in waiting.values()) > 1 << 27 or name == shapes[-1][0]:
            file = f"model-{len(set(places.values())) + 1:05}.safetensors"
            places |= {key: file for key in waiting}
            save_file(waiting, directory / file)
            waiting = {}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return total


def _shapes(given: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    width, inner = given["d_model"], given["ffn"]
    found: list[tuple[str, tuple[int, ...]]] = [("model.shared.weight", (given["vocab_size"], width))]

    def affine(name: str, *size: int) -> None:
        found.extend([(f"{name}.weight", size), (f"{name}.bias", size[:1])])

    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for layer in range(given["layers"]):
            prefix = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    affine(f"{prefix}.{attention}.{part}", width, width)
                affine(f"{prefix}.{attention}_layer_norm", width)
            affine(f"{prefix}.fc1", inner, width)
            affine(f"{prefix}.fc2", width, inner)
            affine(f"{prefix}.final_layer_norm", width)
        if given["model_type"] == "m2m_100":
            affine(f"model.{side}.layer_norm", width)
    return found


def measure(shape: str, place: Path) -> None:
    """Write the model, import it in a process of its own, and print what it took."""
    source = place / "source"
    source.mkdir(parents=True)
    size = write_model(source, shape)
    started = time.monotonic()
    command = [sys.executable, "-c", RUN, str(source), "-o", str(place / "checkpoint"), "--no-tokenizer"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.monotonic() - started
    peak = int(done.stdout.split()[-2]) * 1024
    print(f"weights {size / 1e6:,.0f} MB; peak {peak / 1e6:,.0f} MB, {peak / size:.2f} times; {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="nllb")
    parser.add_argument("--keep", type=Path, help="Write here and keep it.")
    given = parser.parse_args()
    if given.keep is not None:
        measure(given.shape, given.keep)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(given.shape, Path(scratch))


if __name__ == "__main__":
    main()

"""Resident memory of a process that translates: `python -m txport.benchmarks.studies.memory BUNDLE`."""

import subprocess
import sys
from pathlib import Path

import click
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.schema import ModelSizes

# Program of a separate process, whose memory contains only the imports of a service.
_PROCESS = """
import sys
from txport.runtime import Translator
from txport.runtime.system import process_memory
bundle, engine, batch, source, target, beam = sys.argv[1:]
translator = Translator(bundle, engine=engine, batch=int(batch), batch_tokens=int(batch) * int(source))
eos = translator.manifest.tokens.eos
# Different sentences, since equal ones are translated once.
sentences = [[*(4 + (row + place) % 90 for place in range(int(source) - 1)), eos] for row in range(int(batch))]
search = {"beam": int(beam)} if int(beam) > 1 else {}
translator.translate_ids(sentences, max_length=int(target), min_length=int(target) - 1, **search)
print(*map(process_memory, ("VmRSS", "VmHWM", "RssAnon")))
"""


def resident(bundle: Path, engine: str, *sizes: int) -> tuple[int, int, int]:
    """Return resident bytes after a batch, their peak, and the resident bytes that are not mapped from files."""
    command = [sys.executable, "-c", _PROCESS, str(bundle), engine, *map(str, sizes)]
    values = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    current, peak, anonymous = map(int, values)
    return current, peak, anonymous


def cache_bytes(sizes: ModelSizes, batch: int, source: int, target: int, beam: int) -> int:
    """Return the bytes of float32 keys and values: of the source once per sentence, of the target once per beam."""
    return 8 * sizes.decoder_layers * sizes.heads * sizes.head_dim * batch * (source + beam * target)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--engine", default="auto", show_default=True)
@click.option("--batch", default=1, show_default=True, help="Sentences, translated together.")
@click.option("--source", default=32, show_default=True, help="Tokens of a sentence.")
@click.option("--target", default=64, show_default=True, help="New tokens, at most.")
@click.option("--beam", default=1, show_default=True)
def main(bundle: Path, engine: str, batch: int, source: int, target: int, beam: int) -> None:
    """Compare resident memory with the sizes of the weights and of the keys and values."""
    manifest = Manifest.load(bundle)
    weights = manifest.files[WEIGHTS].bytes
    caches = cache_bytes(manifest.model, batch, source, target, beam)
    current, peak, anonymous = resident(bundle, engine, batch, source, target, beam)
    sizes = {"weights": weights, "keys and values": caches, "resident": current, "peak": peak, "not mapped": anonymous}
    for name, size in sizes.items():
        click.echo(f"{name:24} {size / 1e6:8.1f} MB")
    click.echo(f"{'resident less weights':24} {(current - weights) / 1e6:8.1f} MB")
    click.echo(f"(peak - weights) / keys and values: {(peak - weights) / caches:.2f}")


if __name__ == "__main__":
    main()

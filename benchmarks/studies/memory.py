"""Resident memory of a process that translates: `python -m txport.benchmarks.studies.memory BUNDLE`."""

import subprocess
import sys
from pathlib import Path

import click
from txport.runtime.bundle.manifest import WEIGHTS, Manifest

# Program of a separate process, whose memory contains only the imports of a service.
_PROCESS = """
import sys
from txport.runtime import Translator
translator = Translator(sys.argv[1])
translator.translate_ids([[*range(4, 35), translator.manifest.tokens.eos]], max_length=64)
from txport.runtime.system import process_memory
print(*map(process_memory, ("VmRSS", "VmHWM", "RssAnon")))
"""


def resident(bundle: Path) -> tuple[int, int, int]:
    """Return resident bytes after one sentence, their peak, and the resident bytes that are not mapped from files."""
    command = [sys.executable, "-c", _PROCESS, str(bundle)]
    values = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    current, peak, anonymous = map(int, values)
    return current, peak, anonymous


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
def main(bundle: Path) -> None:
    """Compare resident memory with the size of the weights, batch 1, 32 source tokens, 64 new tokens."""
    weights = Manifest.load(bundle).files[WEIGHTS].bytes
    current, peak, anonymous = resident(bundle)
    for name, value in (
        ("weights", weights),
        ("resident", current),
        ("peak", peak),
        ("not mapped from files", anonymous),
    ):
        click.echo(f"{name:24} {value / 1e6:8.1f} MB")
    click.echo(f"resident less weights    {(current - weights) / 1e6:8.1f} MB")


if __name__ == "__main__":
    main()

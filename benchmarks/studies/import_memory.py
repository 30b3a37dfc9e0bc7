"""Memory that `tx-import` takes, on random weights of the shape of NLLB-200's 600M model.

    python -m txport.benchmarks.studies.import_memory

Prints the size of the weights, the command's peak resident memory and their ratio. Disk: twice the weights.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from transformers import M2M100Config, M2M100ForConditionalGeneration

# The command, and then the peak of its own memory: rusage would begin with that of the process which started it.
_IMPORT = """
import atexit, sys
from txport.models.entry import import_
from txport.runtime.processes import process_memory
atexit.register(lambda: print(process_memory("VmHWM"), flush=True))
sys.argv[0] = "tx-import"
import_()
"""


def write_model(directory: Path) -> int:
    """A Hugging Face directory without a tokenizer, its weights in half-gigabyte shards; the bytes of its weights."""
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=256206))
    model.save_pretrained(directory, max_shard_size="500MB")
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source, checkpoint = Path(scratch, "source"), Path(scratch, "checkpoint")
        size = write_model(source)
        started = time.monotonic()
        command = [sys.executable, "-c", _IMPORT, str(source), "-o", str(checkpoint), "--no-tokenizer"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - started
    peak = int(done.stdout.split()[-1])
    print(f"weights {size / 1e6:,.0f} MB; peak {peak / 1e6:,.0f} MB, {peak / size:.2f} times; {seconds:.0f} s")


if __name__ == "__main__":
    main()

"""The C++ runtime against the Python one: `python -m txport.benchmarks.cpp_runtime BUNDLE TXPORT_BENCH`.

Each round runs both in processes of their own, one after the other, so that a drift of the machine's speed hits both.
Timed: whole calls (encoder and loop) by ids, after two calls that warm up; and the start of a process until it has made
its first token (for C++: a call that only prints the version, then the program's own clock). Not timed: tokenization.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from txport.runtime.manifest import WEIGHTS, Manifest

# Prints what txport-bench prints of the same work; `started` is when the process was made.
_PYTHON = """
import json, sys, time
bundle, source, target, calls, started = sys.argv[1], *map(float, sys.argv[2:])
from txport.runtime import Translator
imported = time.time()
translator = Translator(bundle, batch=1)
ids = [*[4 + i * 37 % 1000 for i in range(int(source) - 1)], translator.manifest.tokens.eos]
translator.translate_ids([ids], max_length=1)
first = time.time()
times = []
for call in range(2 + int(calls)):
    start = time.perf_counter()
    made = len(translator.translate_ids([ids], max_length=int(target))[0].ids)
    times.append((time.perf_counter() - start) * 1e3 / made)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"ms": times[2:], "open": (first - imported) * 1e3, "start": (first - started) * 1e3,
                  "resident": int(status["VmRSS"].split()[0]) * 1024}))
"""


def by_python(bundle: Path, source: int, target: int, calls: int) -> dict[str, float]:
    """Median milliseconds a token, milliseconds to the first token, and resident bytes, of a new process."""
    command = [sys.executable, "-c", _PYTHON, str(bundle), str(source), str(target), str(calls), str(time.time())]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found | {"ms": float(np.median(found["ms"]))}


def by_cpp(bundle: Path, tool: Path, source: int, target: int, calls: int) -> dict[str, float]:
    """The same by txport-bench."""
    sizes = ["--source", str(source), "--target", str(target), "--calls", str(calls)]
    found: dict[str, Any] = json.loads(_run([str(tool), str(bundle), *sizes]))["figures"]
    started = time.time()
    _run([str(tool), "--version"])
    loading = (time.time() - started) * 1e3
    return {
        "ms": found["ms_per_token"]["p50"],
        "open": found["startup_ms"],
        "start": loading + found["startup_ms"],
        "resident": found["resident_bytes"],
    }


def _run(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("tool", type=click.Path(path_type=Path))
@click.option("--source", default=32, show_default=True, help="Source tokens, eos included.")
@click.option("--target", default=64, show_default=True, help="Most tokens to make.")
@click.option("--calls", default=10, show_default=True, help="Calls of a round.")
@click.option("--rounds", default=10, show_default=True)
def main(bundle: Path, tool: Path, source: int, target: int, calls: int, rounds: int) -> None:
    """Compare speed, start-up and memory, batch 1; TOOL is txport-bench."""
    weights = Manifest.load(bundle).files[WEIGHTS].bytes
    pairs = [
        (by_cpp(bundle, tool, source, target, calls), by_python(bundle, source, target, calls)) for _ in range(rounds)
    ]
    units = {"ms": "ms a token", "open": "ms, open to first token", "start": "ms, process to first token"}
    for name, unit in units.items():
        cpp, python = (np.array([pair[side][name] for pair in pairs]) for side in (0, 1))
        low, middle, high = np.quantile(cpp / python, [0.1, 0.5, 0.9])
        click.echo(
            f"{unit:28} C++ {np.median(cpp):8.2f}, Python {np.median(python):8.2f}; "
            f"ratio {middle:.2f} (p10 {low:.2f}, p90 {high:.2f})"
        )
    for side, language in ((0, "C++"), (1, "Python")):
        over = np.median([pair[side]["resident"] for pair in pairs]) - weights
        click.echo(f"resident, {language:18} weights ({weights / 1e6:.1f} MB) + {over / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

"""The console scripts of the benchmarks; it imports only the standard library."""

import sys
from typing import NoReturn

from txport.runtime.entry import run_command

_COMMANDS = {"compare": "compare_command", "scale": "scale_command"}


def bench() -> NoReturn:
    """tx-bench BUNDLE, tx-bench compare, tx-bench scale"""
    module = "bench_command"
    if sys.argv[1:2] and sys.argv[1] in _COMMANDS:
        word = sys.argv.pop(1)
        sys.argv[0], module = f"{sys.argv[0]} {word}", _COMMANDS[word]
    run_command(f"txport.benchmarks.{module}", extra="bench")


def attention() -> NoReturn:
    """tx-attention"""
    run_command("txport.benchmarks.attention_command", extra="ort")

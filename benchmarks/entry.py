"""The console scripts of the benchmarks. This module imports only the standard library."""

import sys
from typing import NoReturn

from txport.runtime.entry import run_command


def bench() -> NoReturn:
    """Run tx-bench BUNDLE or tx-bench compare."""
    module = "bench_command"
    if sys.argv[1:2] == ["compare"]:
        sys.argv[0] = f"{sys.argv[0]} {sys.argv.pop(1)}"
        module = "compare_command"
    run_command(f"txport.benchmarks.{module}", extra="bench")


def attention() -> NoReturn:
    """Run tx-attention."""
    run_command("txport.benchmarks.attention_command", extra="ort")

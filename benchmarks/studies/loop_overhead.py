"""Overhead of the greedy loop compared with the bare step of ONNX Runtime.

`python -m txport.benchmarks.studies.loop_overhead BUNDLE`

Both run the same session with the same bound buffers, in turns, so that changes of the machine's speed affect both.
Timed: all steps of one sentence. Not timed: loading, the encoder of the bare runs, tokenization, two warm-up rounds.
"""

from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from txport.benchmarks.studies.turns import in_turns
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request

WARM_UP = 2


def compare(bundle: Path, *, tokens: int, source: int, rounds: int) -> npt.NDArray[np.float64]:
    """Return milliseconds per token, `[3, rounds]`: bare step, loop, and the encoder, which the loop runs once."""
    manifest = Manifest.load(bundle)
    engine = OrtEngine(bundle, manifest)
    ids = np.random.default_rng(0).integers(4, manifest.model.source_vocabulary, source - 1)
    request = Request([*ids.tolist(), manifest.tokens.eos], max_length=tokens, min_length=0)
    token_count = len(decode_all(engine, [request])[0].ids)
    source_ids = np.array([request.source_ids])
    lengths = np.array([source])
    memory = engine.encode(source_ids, lengths)

    def bare() -> None:
        state = engine.allocate(1, source, tokens)
        state.place([0], memory, [0], [tokens])
        session = engine.step_session
        binding = state.binding
        for _ in range(token_count):
            session.run_with_iobinding(binding)

    runs = (bare, lambda: decode_all(engine, [request]), lambda: engine.encode(source_ids, lengths))
    return in_turns(runs, rounds, WARM_UP).T / token_count


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--tokens", default=64, show_default=True, help="Maximum number of target tokens.")
@click.option("--source", default=32, show_default=True, help="Source tokens, eos included.")
@click.option("--rounds", default=30, show_default=True)
def main(bundle: Path, tokens: int, source: int, rounds: int) -> None:
    """Compare the loop with the bare step, batch 1."""
    bare, loop, encoder = compare(bundle, tokens=tokens, source=source, rounds=rounds)
    ratio = (loop - encoder) / bare
    for name, values in (("bare step", bare), ("loop, encoder included", loop), ("encoder", encoder)):
        click.echo(f"{name:24} {np.median(values):8.3f} ms/token, p90 {np.quantile(values, 0.9):.3f}")
    low, middle, high = np.quantile(ratio, [0.1, 0.5, 0.9])
    click.echo(f"loop / bare step, encoder taken off: median {middle:.3f} (p10 {low:.3f}, p90 {high:.3f})")


if __name__ == "__main__":
    main()

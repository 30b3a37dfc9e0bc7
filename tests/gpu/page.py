"""The page of what tests/gpu/run.py has found, joined from all runs whose findings lie in one directory."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txport.benchmarks.report.report import read_report

Finding = dict[str, Any]
BAD = ("failed", "stopped")


def findings(results: Path) -> dict[str, Finding]:
    """What was found last of each test and step, in the order in which they first ran; files are named by the time."""
    lines = [line for file in sorted(results.glob("findings-*.jsonl")) for line in file.read_text().splitlines()]
    found: dict[str, Finding] = {}
    for finding in map(json.loads, lines):
        found[finding["test"]] = finding
    return found


def passed(found: Mapping[str, Finding]) -> bool:
    """Whether nothing failed, and something ran on the device."""
    outcomes = {finding["outcome"] for finding in found.values()}
    ran = [name for name, finding in found.items() if "test_device" in name and finding["outcome"] == "passed"]
    return bool(ran) and outcomes.isdisjoint(BAD)


def page(results: Path, steps: Sequence[str], rehearsal: bool) -> str:
    """The verdict, what failed and what was skipped, and all figures, in Markdown."""
    found = findings(results)
    lines = ["# What a GPU showed", ""]
    if rehearsal:
        lines += ["**A rehearsal over a driver in host memory: no GPU was used, and the times mean nothing.**", ""]
    bad = {name: finding for name, finding in found.items() if finding["outcome"] in BAD}
    missing = [step for step in steps if step not in found]
    verdict = "Everything that ran passed." if passed(found) else f"**Not passed: {', '.join(bad) or 'nothing ran'}.**"
    lines += [verdict + (f" **Not run yet: {', '.join(missing)}.**" if missing else ""), ""]
    rows = [[step, found[step]["outcome"], f"{found[step]['seconds']:.0f} s"] for step in steps if step in found]
    lines += [*_table(["step", "outcome", "time"], rows), ""]
    counts = Counter(finding["outcome"] for name, finding in found.items() if name not in steps)
    lines += [", ".join(f"{count} tests {outcome}" for outcome, count in counts.items())]
    lines += _listed("Failed or stopped", bad)
    lines += _listed("Skipped", {name: finding for name, finding in found.items() if finding["outcome"] == "skipped"})
    return "\n".join([*lines, *_tables(found), *_figures(results), ""])


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows)]


def _listed(title: str, found: Mapping[str, Finding]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {name}: {each['reason']}" for name, each in found.items())] if found else []


def _tables(found: Mapping[str, Finding]) -> Iterator[str]:
    """The rows that tests have recorded, by table."""
    rows = [dict(row) for finding in found.values() for row in finding.get("rows", [])]
    for title in dict.fromkeys(row["table"] for row in rows):
        here = [row for row in rows if row["table"] == title]
        heads = [head for head in dict.fromkeys(head for row in here for head in row) if head != "table"]
        cells = [[row.get(head, "-") for head in heads] for row in here]
        yield from ("", f"## {title}", "", *_table([head.replace("_", " ") for head in heads], cells))


def _figures(results: Path) -> Iterator[str]:
    """Of tx-bench: milliseconds of a token, the encoder and the first token at the median."""
    rows = []
    for file in sorted(results.glob("bench-*/bench.json")):
        for each in read_report(file).measurements:
            parts = (each.ms_per_token, each.encoder_ms, each.first_token_ms)
            times = [f"{part.p50:.4g}" if part else "-" for part in parts]
            rows.append([file.parent.name, each.contestant, each.workload, *times])
    if rows:
        heads = ["run of tx-bench", "contestant", "workload", "ms a token", "encoder ms", "first token ms"]
        yield from ("", "## Figures", "", *_table(heads, rows))

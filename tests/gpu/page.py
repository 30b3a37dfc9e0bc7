"""The page of what tests/gpu/run.py has found, joined from all runs whose findings lie in one directory."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    bad = {
        name: finding["reason"] for name, finding in found.items() if finding["outcome"] in BAD and finding["reason"]
    }
    absent = Counter(each["reason"] for name, each in found.items() if "::" in name and each["outcome"] == "skipped")
    missing = [step for step in steps if step not in found]
    verdict = "Everything that ran passed." if passed(found) else f"**Not passed: {', '.join(bad) or 'nothing ran'}.**"
    skipped = [step for step in steps if step in found and found[step]["outcome"] == "skipped"]
    verdict += f" Skipped: {', '.join(skipped)}." if skipped else ""
    lines += [verdict + (f" **Not run yet: {', '.join(missing)}.**" if missing else ""), ""]
    ended = [(step, found[step]) for step in steps if step in found]
    rows = [[step, each["outcome"], f"{each['seconds']:.0f} s", each["reason"]] for step, each in ended]
    lines += [*_table(["step", "outcome", "time", "reason"], rows), ""]
    counts = Counter(each["outcome"] for name, each in found.items() if "::" in name)
    lines += [", ".join(f"{count} tests {outcome}" for outcome, count in counts.items())]
    lines += _listed("Failed or stopped", bad.items()) + _listed("Skipped", absent.items())
    return "\n".join([*lines, *_tables(found), *_figures(results), ""])


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows)]


def _listed(title: str, pairs: Collection[tuple[object, object]]) -> list[str]:
    return ["", f"## {title}", "", *(f"- {name}: {each}" for name, each in pairs)] if pairs else []


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

"""From the times of a race to the measurements of a report."""

from collections.abc import Mapping, Sequence

from txport.benchmarks.machine.roofline import Shape, roofline
from txport.benchmarks.report.schema import Agreement, Contestant, Machine, Measurement, Percentiles
from txport.benchmarks.report.statistics import percentiles, ratio
from txport.benchmarks.run.rounds import Times
from txport.benchmarks.run.workloads import Work


def measurement(
    contestant: Contestant,
    work: Work,
    times: Mapping[str, Times],
    first: str,
    reference: str,
    shape: Shape,
    machine: Machine,
    rows: int,
    gpu_memory_bytes: int | None,
) -> Measurement:
    """What a contestant did on a workload; it has at least one round.

    Args:
        times: of all contestants of the race.
        first: whom ratios are taken to.
        reference: whose ids are the right ones.
        rows: of a full batch of a text, for the roofline.
        gpu_memory_bytes: of its process.
    """
    ours, workload = times[contestant.name], work.workload
    call = percentiles(ours.all())
    tokens, steps = _made(work, ours)
    per = steps or tokens
    seconds = sum(ours.all()) / 1e3
    calls = len(ours.all())
    if workload.kind == "text":
        rows = min(rows, workload.sentences)
        # Full batches of equal sentences are the least that there is to do.
        line = roofline(shape, machine, contestant.precision, rows, workload.source, max(1, tokens // rows), call)
    else:
        line = roofline(
            shape, machine, contestant.precision, workload.sentences, workload.source, workload.target, call
        )
    return Measurement(
        contestant=contestant.name,
        workload=workload.name,
        settings=dict(ours.setting),
        calls=calls,
        warm_up_calls=ours.warm_up_calls,
        tokens=tokens,
        steps=steps,
        call_ms=call,
        encoder_ms=_part(ours, "encoder"),
        first_token_ms=_part(ours, "first_token"),
        ms_per_token=Percentiles(call.p50 / per, call.p90 / per, None if call.p99 is None else call.p99 / per),
        tokens_per_second=tokens * calls / seconds,
        sentences_per_second=workload.sentences * calls / seconds,
        peak_resident_bytes=ours.peak_resident_bytes,
        gpu_memory_bytes=gpu_memory_bytes,
        joules_per_sentence=None if ours.joules is None else ours.joules / (calls * workload.sentences),
        roofline=line,
        agreement=agreement(ours.ids, times[reference].ids) if contestant.name != reference else None,
        ratio=ratio(ours.medians(), times[first].medians()) if contestant.name != first else None,
        rounds_ms=tuple(ours.medians()),
    )


def _made(work: Work, times: Times) -> tuple[int, int | None]:
    """Tokens of a call, and the steps of its longest row."""
    if work.workload.kind == "text":
        return max(1, sum(map(len, times.ids))), None
    made = [len(row) for row in times.ids] or [work.target] * len(work.sources)
    return max(1, sum(made)), max(1, *made)


def _part(times: Times, name: str) -> Percentiles | None:
    found = times.all(name)
    return percentiles(found) if found else None


def agreement(ids: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> Agreement | None:
    """Sentences whose every id is the reference's; None if either does not say its ids."""
    if not ids or not reference:
        return None
    return Agreement(sum(a == b for a, b in zip(ids, reference, strict=True)), len(reference))

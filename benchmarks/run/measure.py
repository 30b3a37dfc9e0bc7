"""Measurements of a report, computed from the times of the rounds."""

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
    """Return the figures of a contestant on a workload; it has at least one round.

    Args:
        contestant, work: the contestant and the workload.
        shape, machine: shape of the model, and the machine, for the roofline.
        times: times of all contestants, by name.
        first: the contestant that is compared with the others in ratios.
        reference: the contestant whose ids are compared with those of the others.
        rows: number of rows of a full batch of a text, for the roofline.
        gpu_memory_bytes: GPU memory of the process.
    """
    times_of_contestant = times[contestant.name]
    workload = work.workload
    durations = times_of_contestant.all()
    call = percentiles(durations)
    calls = len(durations)
    tokens, steps = _tokens(work, times_of_contestant)
    steps_or_tokens = steps or tokens
    seconds = sum(durations) / 1e3
    if workload.kind == "text":
        # The bound for a text assumes the least possible work: full batches of sentences of equal length.
        rows = min(rows, workload.sentences)
        min_steps = max(1, tokens // rows)
    else:
        rows = workload.sentences
        min_steps = workload.target
    sizes = (rows, workload.source, min_steps, call, workload.beam)
    return Measurement(
        contestant=contestant.name,
        workload=workload.name,
        settings=dict(times_of_contestant.setting),
        calls=calls,
        warm_up_calls=times_of_contestant.warm_up_calls,
        tokens=tokens,
        steps=steps,
        call_ms=call,
        encoder_ms=_percentiles(times_of_contestant.all("encoder")),
        first_token_ms=_percentiles(times_of_contestant.all("first_token")),
        ms_per_token=Percentiles(
            call.p50 / steps_or_tokens,
            call.p90 / steps_or_tokens,
            None if call.p99 is None else call.p99 / steps_or_tokens,
        ),
        tokens_per_second=tokens * calls / seconds,
        sentences_per_second=workload.sentences * calls / seconds,
        peak_resident_bytes=times_of_contestant.peak_resident_bytes,
        gpu_memory_bytes=gpu_memory_bytes,
        roofline=roofline(shape, machine, contestant.precision, *sizes),
        agreement=agreement(times_of_contestant.ids, times[reference].ids) if contestant.name != reference else None,
        ratio=ratio(times_of_contestant.medians(), times[first].medians()) if contestant.name != first else None,
        rounds_ms=tuple(times_of_contestant.medians()),
    )


def _percentiles(durations: Sequence[float]) -> Percentiles | None:
    if durations:
        return percentiles(durations)
    return None


def _tokens(work: Work, times: Times) -> tuple[int, int | None]:
    """Return the number of tokens of a call, and the number of steps of its longest row."""
    if work.workload.kind == "text":
        return max(1, sum(map(len, times.ids))), None
    lengths = [len(row) for row in times.ids] or [work.task.target] * len(work.task.sources)
    return max(1, sum(lengths)), max(1, *lengths)


def agreement(ids: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> Agreement | None:
    """Return the number of sentences with exactly the ids of the reference; None if either does not report its ids."""
    if not ids or not reference:
        return None
    return Agreement(sum(a == b for a, b in zip(ids, reference, strict=True)), len(reference))

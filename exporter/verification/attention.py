"""Comparing the optional graphs of a bundle with PyTorch: attention, scores of given translations, encoder outputs.

PyTorch reads its own answers to a sample of the sentences, and so do the graphs. Besides, the score that the decoder
graph gives to each token of the bundle's own answers must be the one that its steps gave: both are the same arithmetic,
in another order.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from txport.exporter.reference import Batch, answers
from txport.exporter.trial import Trial
from txport.exporter.verification.portions import spread
from txport.exporter.words import plural
from txport.models.transformer import AttentionMaps, Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Float32
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.teacher_forcing import TeacherForcing
from txport.runtime.greedy import decode_all

SAMPLE = 32
# What the largest error of a weight may be, and the mean one of a score, by precision. Weights lie between 0 and 1. The
# differences of int8 from PyTorch are its loss of quality, which is judged by what it translates: these catch a graph
# that computes something else.
WEIGHTS = {"float32": 1e-4, "float16": 0.1, "int8": None}
SCORES = {"float32": 1e-3, "float16": 0.1, "int8": None}
# The mean difference of the graph's scores from the steps' own.
OWN = {"float32": 1e-4, "float16": 0.05, "int8": 0.05}
_SUM = 1e-4  # of a row of weights, from 1


@dataclass
class AttentionReport:
    """The results; errors are the largest absolute ones unless they are called mean."""

    sentences: int = 0
    max_weight_error: float = 0.0
    max_score_error: float = 0.0
    mean_score_error: float = 0.0
    mean_own_score_error: float = 0.0
    max_memory_error: float = 0.0
    max_sum_error: float = 0.0
    hidden: float = 0.0  # the largest weight of the future, which must be 0
    failures: list[str] = field(default_factory=list)


def check_attention(
    model: Transformer, trial: Trial, directory: Path, manifest: Manifest, engine: OrtEngine
) -> AttentionReport:
    """Run the graphs on up to `SAMPLE` sentences.

    Args:
        model: the reference.
        trial: the sentences.
        directory: of the graphs.
        manifest: of the bundle, which has the graphs.
        engine: that runs the other graphs.
    """
    indices = list(itertools.islice(spread([len(source) for source in trial.sources]), SAMPLE))
    graphs, report = TeacherForcing(directory, manifest, engine, 0), AttentionReport()
    sources, limits = [trial.sources[index] for index in indices], [trial.limits[index] for index in indices]
    scores: list[float] = []
    for answer in answers(model, sources, limits, trial.prefix):
        scores += _compare(report, graphs, answer.batch, _maps(model, answer.batch))
    report.mean_score_error = float(np.mean(scores))
    report.mean_own_score_error = _own_scores(graphs, trial, indices, engine)
    report.failures = list(_failures(report, manifest.precision.weights))
    return report


@torch.inference_mode()
def _maps(model: Transformer, batch: Batch) -> tuple[AttentionMaps, torch.Tensor]:
    targets = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in batch.targets], batch_first=True)
    source, lengths = torch.from_numpy(batch.source_ids), torch.from_numpy(batch.source_lengths)
    maps = model.attention_maps(source, lengths, targets, torch.tensor([len(row) for row in batch.targets]))
    return maps, model.encode(source, lengths)


def _compare(
    report: AttentionReport, graphs: TeacherForcing, batch: Batch, expected: tuple[AttentionMaps, torch.Tensor]
) -> list[float]:
    """Take the errors of one batch into the report; return those of all scores."""
    maps, memory = expected
    sources = [row[:length].tolist() for row, length in zip(batch.source_ids, batch.source_lengths, strict=True)]
    errors = []
    for row, reading in graphs.read(sources, batch.targets, cross=True, own=True):
        assert reading.cross is not None and reading.own is not None
        t, s = reading.cross.shape[2:]
        _add_weights(report, reading.cross, maps.cross[:, row, :, :t, :s])
        _add_weights(report, reading.own, maps.decoder[:, row, :, :t, :t])
        report.hidden = max(report.hidden, float(np.triu(reading.own, 1).max()))
        errors += np.abs(reading.log_probabilities - maps.log_probabilities[row, :t].numpy()).tolist()
    for row, weights in graphs.attentions(sources):
        s = len(sources[row])
        _add_weights(report, weights, maps.encoder[:, row, :, :s, :s])
    for row, ours in graphs.memories(sources):
        error = np.abs(ours - memory[row, : len(sources[row])].numpy())
        report.max_memory_error = max(report.max_memory_error, float(error.max()))
    report.sentences += len(sources)
    report.max_score_error = max(report.max_score_error, max(errors))
    return errors


def _add_weights(report: AttentionReport, ours: Float32, expected: torch.Tensor) -> None:
    report.max_weight_error = max(report.max_weight_error, float(np.abs(ours - expected.numpy()).max()))
    report.max_sum_error = max(report.max_sum_error, float(np.abs(ours.sum(axis=-1) - 1).max()))


def _own_scores(graphs: TeacherForcing, trial: Trial, indices: Sequence[int], engine: OrtEngine) -> float:
    """How far the graph's scores of the bundle's own answers are from those that its steps gave, on average."""
    made = decode_all(engine, trial.requests(indices), scores=True)
    sources = [trial.sources[index] for index in indices]
    errors = [
        np.abs(reading.log_probabilities - np.array(made[row].scores))
        for row, reading in graphs.read(sources, [result.ids for result in made])
    ]
    return float(np.concatenate(errors).mean())


def _failures(report: AttentionReport, precision: str) -> Iterator[str]:
    values = (
        report.max_weight_error,
        report.max_score_error,
        report.mean_own_score_error,
        report.max_memory_error,
        report.max_sum_error,
    )
    if not np.isfinite(values).all():
        yield "NaN or infinity in attention, scores or the encoder's output"
        return
    weights, scores, own = WEIGHTS[precision], SCORES[precision], OWN[precision]
    if weights is not None and report.max_weight_error > weights:
        yield f"attention differs from PyTorch's by up to {report.max_weight_error:.2g}, more than {weights:g}"
    if scores is not None and report.mean_score_error > scores:
        yield f"scores differ from PyTorch's by {report.mean_score_error:.2g} on average, more than {scores:g}"
    if report.mean_own_score_error > own:
        differ = f"{report.mean_own_score_error:.2g} on average, more than {own:g}"
        yield f"scores of {plural(report.sentences, 'answer')} differ from those of the steps by {differ}"
    if report.max_sum_error > _SUM:
        yield f"a row of attention sums to 1 only within {report.max_sum_error:.2g}"
    if report.hidden > 0:
        yield f"a token attends to a later one by {report.hidden:.2g}"

"""Comparison of a bundle's optional graphs with PyTorch: attention, scores of given translations, encoder outputs.

PyTorch and the graphs read PyTorch's outputs for some of the sentences. In addition, the decoder graph must give
the bundle's outputs the same token scores as the steps did, since both compute the same in another order. Beam search
with its step must find outputs with the same scores as beam search with a plain step.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from txport.exporter.reference import Batch, answers
from txport.exporter.sample import Sample, spread
from txport.exporter.verification.errors import Errors
from txport.exporter.verification.report import AttentionReport, BeamsReport
from txport.models.attention_maps import BatchMaps, attention_maps
from txport.models.transformer import Transformer
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.engine import Float32
from txport.runtime.engines.ort import OrtEngine
from txport.runtime.engines.teacher_forcing import TeacherForcing
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.settings import Search

SAMPLE = 32
BEAM = 4
# Maximum mean errors of weights (which are between 0 and 1) and scores, by precision. Maximum errors are only reported:
# if attention is undecided between two tokens, a rounding error of the scores changes the weights much more.
WEIGHTS = {"float32": 1e-5, "float16": 0.01, "int8": 0.05}
SCORES = {"float32": 1e-4, "float16": 0.1, "int8": 0.5}
# Maximum mean difference between the graph's scores and those of the steps.
MAX_SCORE_ERROR = {"float32": 1e-4, "float16": 0.05, "int8": 0.05}
_SUM = 1e-4  # maximum difference between the sum of a row of weights and 1


def check_attention(
    model: Transformer, sample: Sample, directory: Path, manifest: Manifest, engine: OrtEngine
) -> AttentionReport:
    """Run the graphs on up to `SAMPLE` sentences.

    Args:
        model: the reference.
        sample: the sentences.
        directory: of the graphs.
        manifest: of a bundle with these graphs.
        engine: engine for the other graphs.
    """
    indices = list(itertools.islice(spread([len(source) for source in sample.sources]), SAMPLE))
    comparison = _Comparison(TeacherForcing(directory, manifest, engine, "cpu", 0))
    sources = [sample.sources[index] for index in indices]
    limits = [sample.limits[index] for index in indices]
    for answer in answers(model, sources, limits, sample.prefix):
        comparison.add(answer.batch, *_maps(model, answer.batch))
    comparison.add_step_scores(sample, indices, engine)
    return comparison.report(len(indices), manifest.precision.weights)


@torch.inference_mode()
def _maps(model: Transformer, batch: Batch) -> tuple[BatchMaps, torch.Tensor]:
    targets = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in batch.targets], batch_first=True)
    source = torch.from_numpy(batch.source_ids)
    lengths = torch.from_numpy(batch.source_lengths)
    maps = attention_maps(model, source, lengths, targets, torch.tensor([len(row) for row in batch.targets]))
    return maps, model.encode(source, lengths)


def check_beams(sample: Sample, directory: Path, manifest: Manifest, engine: OrtEngine) -> BeamsReport:
    """Search up to `SAMPLE` sentences with and without the step of beam search; see `check_attention`.

    If two hypotheses are nearly equal, rounding may change the choice, so scores are compared, not ids.
    """
    if engine.beam_steps is None:
        return BeamsReport(0, 0, 0.0, 0.0, ["this version of ONNX Runtime does not load the step of beam search"])
    indices = list(itertools.islice(spread([len(source) for source in sample.sources]), SAMPLE))
    search = Search(beam=min(BEAM, manifest.limits.batch))
    requests = [replace(request, search=search) for request in sample.requests(indices)]
    other_graphs = tuple(graph for graph in manifest.graphs if graph.role != "decoder_beams")
    plain = OrtEngine(directory, dataclasses.replace(manifest, graphs=other_graphs), manifest.lowerings[:1])
    errors = Errors()
    identical = 0
    for one, other in zip(decode_all(engine, requests), decode_all(plain, requests), strict=True):
        ours = one.hypotheses[0]
        expected = other.hypotheses[0]
        identical += ours.ids == expected.ids
        errors.add(np.array([ours.score], np.float32), np.array([expected.score], np.float32))
    maximum = MAX_SCORE_ERROR[manifest.precision.weights]
    message = (
        f"scores of beam search differ from those by plain steps by {errors.mean:.2g} on average, more than {maximum:g}"
    )
    if not errors.finite or errors.mean > maximum:
        failures = [message]
    else:
        failures = []
    return BeamsReport(len(requests), identical, errors.largest, errors.mean, failures)


class _Comparison:
    """Comparison of the graphs' outputs with PyTorch's.

    Attributes:
        weights, scores, memory: errors of attention, of log-probabilities and of the encoder's output.
        step_scores: differences between scores and those of the bundle's steps.
        sums: differences between sums of rows of weights and 1.
        later: maximum weight for a future token, which must be 0.
    """

    def __init__(self, graphs: TeacherForcing) -> None:
        self._graphs = graphs
        self.weights, self.scores, self.memory, self.step_scores, self.sums = (Errors() for _ in range(5))
        self.later = 0.0

    def add(self, batch: Batch, maps: BatchMaps, memory: torch.Tensor) -> None:
        """Compare one batch with PyTorch's results."""
        sources = [row[:length] for row, length in zip(batch.source_ids, batch.source_lengths, strict=True)]
        for row, reading in self._graphs.read(sources, batch.targets, cross=True, self_attention=True):
            assert reading.cross is not None and reading.self_attention is not None
            t, s = reading.cross.shape[2:]
            self._add_weights(reading.cross, maps.cross[:, row, :, :t, :s])
            self._add_weights(reading.self_attention, maps.decoder[:, row, :, :t, :t])
            self.later = max(self.later, float(np.triu(reading.self_attention, 1).max()))
            self.scores.add(reading.log_probabilities, maps.log_probabilities[row, :t].numpy())
        if not len(maps.encoder):  # a model of encoder states has no encoder attention
            return
        for row, weights in self._graphs.attentions(sources):
            s = len(sources[row])
            self._add_weights(weights, maps.encoder[:, row, :, :s, :s])
        for row, ours in self._graphs.memories(sources):
            self.memory.add(ours, memory[row, : len(sources[row])].numpy())

    def _add_weights(self, ours: Float32, expected: torch.Tensor) -> None:
        self.weights.add(ours, expected.numpy())
        sums = ours.sum(axis=-1)
        self.sums.add(sums, np.ones_like(sums))

    def add_step_scores(self, sample: Sample, indices: Sequence[int], engine: OrtEngine) -> None:
        """Compare the scores of the bundle's outputs."""
        results = decode_all(engine, [replace(request, scores=True) for request in sample.requests(indices)])
        targets = [result.ids for result in results]
        for row, reading in self._graphs.read([sample.sources[index] for index in indices], targets):
            self.step_scores.add(reading.log_probabilities, np.array(results[row].scores, np.float32))

    def report(self, sentences: int, precision: str) -> AttentionReport:
        """Return the report of all comparisons, with failures."""
        return AttentionReport(
            sentences=sentences,
            max_weight_error=self.weights.largest,
            mean_weight_error=self.weights.mean,
            max_score_error=self.scores.largest,
            mean_score_error=self.scores.mean,
            mean_own_score_error=self.step_scores.mean,
            max_memory_error=self.memory.largest,
            failures=list(self._failures(precision)),
        )

    def _failures(self, precision: str) -> Iterator[str]:
        all_errors = self.weights, self.scores, self.memory, self.step_scores, self.sums
        if not all(each.finite for each in all_errors):
            yield "NaN or infinity in attention, scores or the encoder's output"
        for errors, description, maximum in (
            (self.weights, "attention differs from PyTorch's", WEIGHTS[precision]),
            (self.scores, "scores differ from PyTorch's", SCORES[precision]),
            (self.step_scores, "scores differ from those of the steps", MAX_SCORE_ERROR[precision]),
        ):
            if errors.mean > maximum:
                yield f"{description} by {errors.mean:.2g} on average, more than {maximum:g}"
        if self.sums.largest > _SUM:
            yield f"a row of attention sums to 1 only within {self.sums.largest:.2g}"
        if self.later > 0:
            yield f"a token attends to a later one by {self.later:.2g}"

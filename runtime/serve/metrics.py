"""Metrics for Prometheus: requests and their latency, tokens, queues and batch utilisation."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from txport.runtime.serve.models import Model

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """All metrics of a server.

    Args:
        models: the models of the server.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("txport_requests", "Requests.", ["path", "status"], registry=self.registry)
        self.seconds = Histogram(
            "txport_request_seconds",
            "Time from the head of a request to the end of its answer.",
            ["path"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.first_seconds = Histogram(
            "txport_first_piece_seconds",
            "The same to the first text of a stream.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.tokens = Counter("txport_tokens", "Tokens that were made.", ["model"], registry=self.registry)
        self.sentences = Counter("txport_sentences", "Sentences translated.", ["model"], registry=self.registry)
        self.registry.register(_Queues(models))
        ProcessCollector(registry=self.registry)


class _Queues:
    """Metrics of the models, computed at each scrape.

    Counters of a queue restart at 0 when its model is loaded again; Prometheus expects such resets.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        label = ["model"]
        is_loaded = GaugeMetricFamily("txport_model_loaded", "Whether a model is loaded.", labels=label)
        loads = CounterMetricFamily("txport_model_loads", "How often a model was loaded.", labels=label)
        weights = GaugeMetricFamily("txport_model_bytes", "Size of a model's weights.", labels=label)
        waiting = GaugeMetricFamily("txport_queue_sentences", "Sentences without an answer.", labels=label)
        steps = CounterMetricFamily("txport_batch_steps", "Groups of steps that batches have made.", labels=label)
        rows = CounterMetricFamily("txport_batch_rows", "Rows that worked, over all groups of steps.", labels=label)
        max_rows = GaugeMetricFamily("txport_batch_most_rows", "Rows that a batch has at most.", labels=label)
        for model in self._models:
            name = [model.name]
            open_one = model.loaded
            is_loaded.add_metric(name, open_one is not None)
            loads.add_metric(name, model.loads)
            weights.add_metric(name, model.bytes)
            max_rows.add_metric(name, model.manifest.limits.batch)
            if open_one is not None:
                load = open_one.translator.load
                waiting.add_metric(name, load.unanswered)
                steps.add_metric(name, load.steps)
                rows.add_metric(name, load.rows)
        yield from (is_loaded, loads, weights, waiting, steps, rows, max_rows)

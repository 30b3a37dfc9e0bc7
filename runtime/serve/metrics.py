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
            "Time from the head of a request to the first text of its stream.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.tokens = Counter("txport_tokens", "Generated tokens.", ["model"], registry=self.registry)
        self.sentences = Counter("txport_sentences", "Translated sentences.", ["model"], registry=self.registry)
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
        unanswered = GaugeMetricFamily("txport_queue_sentences", "Unanswered sentences.", labels=label)
        groups = CounterMetricFamily("txport_batch_steps", "Groups of steps of all batches.", labels=label)
        rows = CounterMetricFamily("txport_batch_rows", "Active rows, summed over all groups of steps.", labels=label)
        max_rows = GaugeMetricFamily("txport_batch_most_rows", "Maximum number of rows of a batch.", labels=label)
        for model in self._models:
            name = [model.name]
            loaded = model.loaded
            is_loaded.add_metric(name, loaded is not None)
            loads.add_metric(name, model.loads)
            weights.add_metric(name, model.bytes)
            max_rows.add_metric(name, model.manifest.limits.batch)
            if loaded is not None:
                load = loaded.translator.load
                unanswered.add_metric(name, load.unanswered)
                groups.add_metric(name, load.steps)
                rows.add_metric(name, load.rows)
        yield from (is_loaded, loads, weights, unanswered, groups, rows, max_rows)

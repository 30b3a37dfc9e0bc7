"""A bundle by the Python runtime, on whatever engine the runtime chooses."""

from collections.abc import Callable

import numpy as np
from txport.benchmarks.contestants.backend import DEFAULT, Setting, Task, padded
from txport.benchmarks.contestants.ignore_eos import EndlessEngine
from txport.runtime import Translator
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.greedy import Request, decode_all


class BundleBackend:
    """A bundle.

    Args:
        bundle, device, lowering, threads: as of `txport.runtime.translator.Translator`.
    """

    def __init__(self, bundle: str, device: str, lowering: str | None, threads: int) -> None:
        self._bundle, self._device, self._lowering = bundle, device, lowering
        self._open(threads, 1)
        self._call: Callable[[], list[list[int]]] = list
        self._parts: dict[str, Callable[[], object]] = {}
        self._made: list[list[int]] = []

    def _open(self, threads: int, workers: int) -> None:
        self._opened = threads, workers
        self._translator = Translator(self._bundle, self._device, self._lowering, threads, workers=workers)
        engine = self._translator.engine
        self.engine, self.device = engine.name, "cuda" if isinstance(engine, DeviceEngine) else "cpu"

    def prepare(self, task: Task, setting: Setting) -> None:
        """Fixed tasks go through the greedy loop by ids; texts through `translate_ids`, batched as users get it.

        `setting` may have threads and workers, each a number or "default"; others than before open the bundle again.
        """
        threads = setting.get("threads", str(self._opened[0])).replace(DEFAULT, "0")
        asked = int(threads), int(setting.get("workers", "1").replace(DEFAULT, "0"))
        if asked != self._opened:
            self._open(*asked)
        if not task.fixed:
            self._call, self._parts = lambda: self._text(task), {}
            return
        engine, rows = EndlessEngine(self._translator.engine), len(task.sources)
        width = max(map(len, task.sources))
        requests = [Request(source, task.target) for source in task.sources]
        first = [Request(source, 1) for source in task.sources]
        given, lengths = (np.array(x, np.int64) for x in padded(task.sources, engine.tokens.pad))

        def decode(requests: list[Request]) -> list[list[int]]:
            results = decode_all(engine, requests, rows=rows, batch_tokens=rows * width)
            return [result.ids for result in results]

        self._call = lambda: decode(requests)
        self._parts = {"encoder": lambda: engine.encode_and_wait(given, lengths), "first_token": lambda: decode(first)}

    def _text(self, task: Task) -> list[list[int]]:
        return [result.ids for result in self._translator.translate_ids(task.sources, max_length=task.target)]

    def call(self) -> None:
        """The task."""
        self._made = self._call()

    def ids(self) -> list[list[int]]:
        """Of the last call."""
        return self._made

    def parts(self) -> dict[str, Callable[[], object]]:
        """The encoder, and all until the first token; none of a text."""
        return self._parts

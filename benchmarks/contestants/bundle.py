"""A bundle with the Python runtime, on the engine that the runtime chooses."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from txport.benchmarks.contestants.backend import DEFAULT, Backend, Setting, Task, padded
from txport.benchmarks.contestants.ignore_eos import encode_and_wait, fused_without_eos, ignore_eos, search_of
from txport.runtime import Options, Translator
from txport.runtime.device.engine import DeviceEngine
from txport.runtime.engines.native import NativeEngine
from txport.runtime.search.decoding import decode_all
from txport.runtime.search.requests import Request


class BundleBackend(Backend):
    """A bundle with the Python runtime.

    Args:
        bundle, device, engine, lowering, threads: as for `txport.runtime.translator.Translator`.
    """

    def __init__(self, bundle: str, device: str, engine: str, lowering: str | None, threads: int) -> None:
        self._bundle = bundle
        self._device = device
        self._engine = engine
        self._lowering = lowering
        self._threads = threads
        self._translator: Translator | None = None
        self._opened = (threads, 1)  # threads and workers
        self._open(threads, 1)
        self._call: Callable[[], list[list[int]]] = list
        self._parts: dict[str, Callable[[], object]] = {}
        self._ids: list[list[int]] = []

    def _open(self, threads: int, workers: int) -> Translator:
        """Return an open bundle. An earlier one is closed first, because its memory would be measured as well."""
        if self._translator is None or self._opened != (threads, workers):
            self._translator = None
            self._translator = Translator(
                self._bundle, self._device, self._engine, self._lowering, threads, workers=workers
            )
        self._opened = threads, workers
        engine = self._translator.engine
        self.engine = engine.name
        self.device = "cpu"
        if isinstance(engine, DeviceEngine):
            self.device = "cuda"
        return self._translator

    def prepare(self, task: Task, setting: Setting) -> None:
        """Prepare the decoding loop for a fixed task, or `translate_ids`, with its batching, for a text.

        `setting` may contain threads and workers, each a number or "default". If they change, the bundle is reopened.
        """
        # The functions of the last task hold its engine in memory.
        self._call = list
        self._parts = {}
        threads = int(setting.get("threads", str(self._threads)).replace(DEFAULT, "0"))
        translator = self._open(threads, int(setting.get("workers", "1").replace(DEFAULT, "0")))
        if not task.fixed:
            translate = translator.translate_ids
            # The maximum length is that of the peers, which have one maximum for all sentences.
            options = Options(task.target, beam=task.beam, early_stopping=True if task.beam > 1 else None)
            self._call = lambda: [x.ids for x in translate(task.sources, options)]
            return
        if isinstance(translator.engine, NativeEngine):  # the fused one
            del translator
            self._translator = None
            plain = engine = fused_without_eos(Path(self._bundle), threads, task)
        else:
            plain = translator.engine
            engine = ignore_eos(plain)
        rows = len(task.sources)
        source_ids, lengths = (np.array(x, np.int64) for x in padded(task.sources, plain.tokens.pad))

        def decode(target: int) -> list[list[int]]:
            requests = [Request(source, target, search=search_of(task)) for source in task.sources]
            results = decode_all(engine, requests, rows=rows, batch_tokens=source_ids.size)
            return [result.ids for result in results]

        self._call = lambda: decode(task.target)
        self._parts = {
            "encoder": lambda: encode_and_wait(plain, source_ids, lengths),
            "first_token": lambda: decode(1),
        }

    def call(self) -> None:
        """Run the task."""
        self._ids = self._call()

    def ids(self) -> list[list[int]]:
        """Return the ids of the last call."""
        return self._ids

    def parts(self) -> Mapping[str, Callable[[], object]]:
        """Return the encoder, and the call up to the first token; empty for a text."""
        return self._parts

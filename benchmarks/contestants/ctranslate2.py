"""CTranslate2: the same model in its format and engine, with any of its compute types, at its best setting."""

import os
from typing import Any

import ctranslate2
from txport.benchmarks.contestants.backend import Backend, Setting, Task, cut_after


def token(token_id: int) -> str:
    """Return the name of an id in the vocabulary of a converted model: CTranslate2 reads and writes names."""
    return f"t{token_id}"


class CTranslate2Backend(Backend):
    """A converted model. A setting contains its threads and batch size.

    Args:
        model: a directory of `txport.benchmarks.contestants.ctranslate2_weights`.
        device: "cpu" or "cuda".
        compute_type: a compute type of CTranslate2.
        eos: the id that ends a sentence.
    """

    def __init__(self, model: str, device: str, compute_type: str, eos: int) -> None:
        supported = ctranslate2.get_supported_compute_types(device)
        if compute_type not in supported:
            raise ValueError(
                f"{compute_type} is not one of {', '.join(sorted(supported))}, the types that it supports here"
            )
        self._open = {"model_path": model, "device": device, "compute_type": compute_type}
        wait = os.environ.get("OMP_WAIT_POLICY", "default")
        self.engine = f"CTranslate2 {ctranslate2.__version__} {compute_type} on {device}, OMP_WAIT_POLICY {wait}"
        self.device = device
        self._eos = eos
        self._threads: tuple[str, str] | None = None
        self._translator: Any = None
        self._task: Task | None = None
        self._tokens: list[list[str]] = []
        self._options: dict[str, Any] = {}
        self._results: Any = []

    def prepare(self, task: Task, setting: Setting) -> None:
        """Convert ids to names. `setting` contains intra and inter, and for a text also rows and batch_type."""
        if task.prefix:
            raise ValueError("models with a forced prefix are not supported here")
        threads = (setting["intra"], setting["inter"])
        if threads != self._threads:
            self._translator = ctranslate2.Translator(
                **self._open, intra_threads=int(threads[0]), inter_threads=int(threads[1])
            )
            self._threads = threads
        self._task = task
        self._tokens = [[token(each) for each in source] for source in task.sources]
        self._options = {
            "beam_size": task.beam,
            "max_decoding_length": task.target,
            "min_decoding_length": 0,  # by default, at least one token comes before the end
            "max_input_length": 0,
            "return_end_token": True,
            # eos cannot be ignored, but another token can replace it.
            "end_token": [token(task.absent if task.fixed else self._eos)],
            # Several translators get equal parts of a batch.
            "max_batch_size": -(-len(task.sources) // int(threads[1])) if task.fixed else int(setting["rows"]),
            "batch_type": setting.get("batch_type", "examples"),
        }

    def call(self) -> None:
        """Run the task. CTranslate2 sorts and batches the sentences itself."""
        self._results = self._translator.translate_batch(self._tokens, **self._options)

    def ids(self) -> list[list[int]]:
        """Return the ids of the last call."""
        assert self._task is not None
        rows = [[int(name[1:]) for name in result.hypotheses[0]] for result in self._results]
        if self._task.fixed:
            return rows
        return [cut_after(row, self._eos) for row in rows]

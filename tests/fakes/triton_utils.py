"""A fake of the module that Triton's Python backend provides to models. The real one exists only in the server."""

from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonError(Exception):
    pass


@dataclass
class Tensor:
    name: str
    values: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.values


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


class Request:
    """A request, and its sender: one response, which is final."""

    def __init__(self, **inputs: list[str]) -> None:
        self.inputs = {
            name: Tensor(name, np.array([each.encode() for each in values], dtype=np.object_))
            for name, values in inputs.items()
        }
        self.answered, self.cancelled = Event(), False
        self.response: InferenceResponse | None = None

    def get_response_sender(self) -> "Request":
        return self

    def is_cancelled(self) -> bool:
        return self.cancelled

    def send(self, response: InferenceResponse, flags: int) -> None:
        assert self.response is None and flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.response = response
        self.answered.set()

    def result(self) -> dict[str, list[Any]] | str:
        """Return the outputs, or the error."""
        assert self.answered.wait(60) and self.response is not None
        if self.response.error is not None:
            return str(self.response.error)
        return {tensor.name: list(tensor.values) for tensor in self.response.output_tensors}


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return request.inputs.get(name)

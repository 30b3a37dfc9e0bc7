"""Model for Triton's Python backend: each text of a request joins the running batch.

`tx-triton` writes this file into a model repository, beside a config.pbtxt with the path of the bundle. `execute`
returns at once, so that the next request can join the batch. Each request is answered when its texts are finished.
"""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # part of Triton, not of a package
from txport.runtime.options import Options
from txport.runtime.translator import Translator


class TritonPythonModel:
    """The model. Triton requires the names of this class and its methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the bundle."""
        parameters = json.loads(args["model_config"])["parameters"]
        settings = {name: each["string_value"] for name, each in parameters.items()}
        self.translator = Translator(settings["bundle"], device=settings["device"], threads=int(settings["threads"]))

    def execute(self, requests: list[Any]) -> None:
        """Submit the texts of all requests. Answers are sent later, when they are ready."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                PendingResponse(self.translator, request, sender)
            except Exception as error:  # the input is invalid, or the queue is full
                _send(sender, pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))

    def finalize(self) -> None:
        """Answer all requests, and close the bundle."""
        self.translator.close()


class PendingResponse:
    """The answer to one request. It is sent when the last text is finished.

    Args:
        translator: translator of the bundle.
        request: request with an array of texts of any shape, and optionally languages, which apply to all texts.
        sender: response sender of Triton.
    """

    def __init__(self, translator: Translator, request: Any, sender: Any) -> None:
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        options = Options(source_language=_text_of(request, "SOURCE"), target_language=_text_of(request, "TARGET"))
        self.sender = sender
        self.shape = texts.shape
        decoded = [text.decode() for text in texts.ravel()]
        self.futures: list[Any] = []
        try:
            for text in decoded:
                self.futures.append(translator.submit(text, options))
        except Exception:
            self.cancel()
            raise
        self.unfinished = len(self.futures)
        self.is_cancelled = False
        if not self.unfinished:
            self.finish()
        for future in self.futures:  # they finish in the thread of the queue, so `one_done` needs no lock
            future.add_done_callback(self.one_done)

    def one_done(self, _: object) -> None:
        """Count a finished text; answer after the last one."""
        self.unfinished -= 1
        if not self.unfinished:
            self.finish()
        elif not self.is_cancelled and self.sender.is_cancelled():
            self.is_cancelled = True
            self.cancel()

    def cancel(self) -> None:
        """Cancel all texts, which frees their rows."""
        for future in self.futures:
            future.cancel()

    def finish(self) -> None:
        """Send the translations, or the first error."""
        errors = [error for future in self.futures if (error := _error(future)) is not None]
        if errors:
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(errors[0]))
        else:
            translations = [future.result() for future in self.futures]
            translated = np.array([each.text.encode() for each in translations], dtype=np.object_).reshape(self.shape)
            tokens = np.array([len(each.ids) for each in translations], dtype=np.int32).reshape(self.shape)
            tensors = [pb_utils.Tensor("TRANSLATION", translated), pb_utils.Tensor("TOKENS", tokens)]
            response = pb_utils.InferenceResponse(output_tensors=tensors)
        _send(self.sender, response)


def _text_of(request: Any, name: str) -> str | None:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    return str(tensor.as_numpy().ravel()[0].decode())


def _error(future: Any) -> str | None:
    if future.cancelled():
        return "the request was cancelled"
    error = future.exception()
    if error is None:
        return None
    return str(error)


def _send(sender: Any, response: Any) -> None:
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

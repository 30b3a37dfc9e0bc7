"""All graphs of a bundle, traced at once: that is Python from end to end, so only processes use more than one core.

Children are forked, as PyTorch's DataLoader forks its workers: they share the weights, and send back graphs without.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import onnx
import onnx_ir as ir
import torch
from torch import Tensor
from txport.exporter.graphs.lowerings import LOWERINGS
from txport.exporter.graphs.modules import DecoderStep
from txport.exporter.graphs.trace import trace_encoder, trace_step, trace_step_module
from txport.models.transformer import Transformer

# The file that a graph on its way names for its weights; there is no such file.
_ELSEWHERE = "in the parent"


def trace_all(
    model: Transformer, lowerings: Sequence[str], longest: int, advance: Callable[[], None]
) -> dict[str, ir.Model]:
    """The encoder and the decoder steps of `lowerings` by the names of their files.

    Args:
        model: in the dtype of the graphs.
        lowerings: one or more. The first is traced here, as the encoder is, each other one in a process of its own.
        longest: most tokens of a source and of an answer.
        advance: is called as often as there is one graph more.
    """
    with ExitStack() as stack:
        models = {"encoder": trace_encoder(model, longest)}
        advance()
        # Only now: what PyTorch sets up for its first trace is then there for all.
        children = {name: stack.enter_context(_child(model, name, longest)) for name in lowerings[1:]}
        for name in lowerings:
            there = children.get(name)
            models[f"decoder_step.{name}"] = there() if there else trace_step(model, LOWERINGS[name], longest)
            advance()
        return models


@contextmanager
def _child(model: Transformer, lowering: str, max_target: int) -> Iterator[Callable[[], ir.Model]]:
    """A process that traces; what is yielded waits for its graph."""
    step = DecoderStep(model, LOWERINGS[lowering], max_target)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_trace, args=(sender, step, max_target), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of threads, see `_trace`
        process.start()
    sender.close()

    def result() -> ir.Model:
        try:
            return _with_weights(receiver.recv_bytes(), step.state_dict())
        except EOFError:
            process.join()
            raise RuntimeError(f"the process that traced {lowering} ended with code {process.exitcode}") from None

    try:
        yield result
    finally:
        receiver.close()
        process.terminate()
        process.join()


def _trace(sender: Connection, step: DecoderStep, max_target: int) -> None:
    # The threads of the parent's pools are not here, and a parallel region would wait for them.
    torch.set_num_threads(1)
    sender.send_bytes(_without_weights(trace_step_module(step, max_target), step.state_dict()))


def _without_weights(model: ir.Model, state: Mapping[str, Tensor]) -> bytes:
    """ONNX, in which the initializers that are in `state` have no data."""
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if name in state and tensor is not None:
            shape = ir.Shape(tensor.shape)  # type: ignore[arg-type]
            value.const_value = ir.ExternalTensor(_ELSEWHERE, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
    return bytes(ir.to_proto(model).SerializeToString())


def _with_weights(data: bytes, state: Mapping[str, Tensor]) -> ir.Model:
    model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(data))
    for name, value in model.graph.initializers.items():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.tensor(state[name].detach(), name=name)
    return model

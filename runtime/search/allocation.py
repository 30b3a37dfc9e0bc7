"""Allocation of the state of a batch.

If there is not enough memory for several rows per sentence, the error names a smaller size that fits, found by halving.
"""

from txport.runtime.engine import DecoderState, Engine
from txport.runtime.errors import ResourceError


def allocate(engine: Engine, sizes: tuple[int, int, int, int], logits: bool, top: int) -> DecoderState:
    """Allocate the buffers of a batch; see `Engine.allocate`.

    Args:
        engine: the engine that runs the model.
        sizes: number of sentences, rows per sentence, source length and target length.
        logits: whether logits will be read.
        top: maximum number of candidates that will be read.

    Raises:
        ResourceError: there is not enough memory.
    """
    sentences, width, source, target = sizes

    def state(sentences: int, width: int) -> DecoderState:
        return engine.allocate(sentences * width, source, target, logits=logits, top=top, beams=width)

    def has_memory(sentences: int, width: int) -> bool:
        try:
            state(sentences, width)
        except ResourceError:
            return False
        return True

    try:
        return state(sentences, width)
    except ResourceError as error:
        smaller_sizes = [(count, width) for count in _halves(sentences)] + [(1, count) for count in _halves(width)]
        if width > 1:
            fitting_size = next((each for each in smaller_sizes if has_memory(*each)), None)
        else:
            fitting_size = None
        if fitting_size is None:
            raise
        if fitting_size[1] == width:
            remedy = f"batch {fitting_size[0]}"
        else:
            remedy = f"beam or n_best {fitting_size[1]}"
        message = f"there is not enough memory for {sentences} sentences of {width} rows each: {remedy} fits"
        raise ResourceError(message) from error


def _halves(count: int) -> list[int]:
    """Return half of a number, half of that and so on, down to 1."""
    if count > 1:
        return [count // 2, *_halves(count // 2)]
    return []

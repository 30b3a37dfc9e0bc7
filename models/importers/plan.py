"""Mapping of the tensors of an imported model to our parameters. All are checked before the first one is written."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from txport.models.checkpoint import join_names, parameter_shapes
from txport.models.config import Config
from txport.models.importers.weights import Stored, equal
from txport.runtime.errors import CheckpointError

_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_AT_ONCE = 1 << 20  # maximum number of values in memory at once


@dataclass(frozen=True)
class PlannedTensor:
    """One of our tensors: shape, dtype, a function that reads some of its rows, and its origin."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], Tensor]
    origin: str


class ImportPlan:
    """Plan that fills our parameters by name, and checks that none is missing and no tensor is left over.

    Args:
        theirs: tensors of the imported model.
        source: file or directory of the imported model, for messages. It has nothing to do with the source language.

    Attributes:
        parts: the planned tensors, by the names of our parameters.
        keeps: objects that must exist until the tensors are written, such as a temporary directory.
    """

    def __init__(self, theirs: Mapping[str, Stored], source: object) -> None:
        self.theirs = theirs
        self.source = source
        self.parts: dict[str, PlannedTensor] = {}
        self.keeps: list[object] = []
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether the imported model has this tensor."""
        return name in self.theirs

    def count(self, prefix: str, advice: str) -> int:
        """Return the number of layers whose tensor names begin with `prefix`, followed by the number of the layer.

        Raises:
            CheckpointError: there are none; the message ends with `advice`.
        """
        numbers = {name[len(prefix) :].partition(".")[0] for name in self.theirs if name.startswith(prefix)}
        if not numbers:
            raise CheckpointError(f"{self.source} has no {prefix}0: {advice}")
        return len(numbers)

    def stored(self, name: str) -> Stored:
        """Return a tensor of the imported model, and mark it as used.

        Raises:
            CheckpointError: the imported model lacks it, or it is not a float tensor.
        """
        if name not in self.theirs:
            raise CheckpointError(f"{self.source} lacks {name}, which its configuration needs")
        stored = self.theirs[name]
        if stored.dtype is None:
            raise CheckpointError(f"{self.source}: {name} holds no floating point numbers")
        self._used.add(name)
        return stored

    def take(self, ours: str, theirs: str, first: int = 0, rows: int | None = None) -> None:
        """Map our tensor to theirs, or to `rows` rows of theirs from row `first`."""
        stored = self.stored(theirs)
        if stored.shape:
            available = stored.shape[0]
        else:
            available = 1
        if rows is None:
            stop = available
        else:
            stop = first + rows
        if stop > available:
            raise CheckpointError(f"{self.source}: {theirs} has {available} rows, but {stop} are needed")
        shape = (stop - first, *stored.shape[1:])
        # A model in half precision stays so, since float32 would double its size without more information.
        if stored.dtype in _NAMES:
            dtype = stored.dtype
        else:
            dtype = torch.float32
        assert dtype is not None
        self.parts[ours] = PlannedTensor(shape, dtype, lambda i, j: stored.read(first + i, first + j), theirs)

    def put(self, ours: str, tensor: Tensor, origin: str = "computed") -> None:
        """Set our tensor to a given one."""
        self.parts[ours] = PlannedTensor(tuple(tensor.shape), torch.float32, lambda i, j: tensor[i:j], origin)

    def change(self, ours: str, function: Callable[[Tensor], Tensor]) -> None:
        """Apply a function to a mapped tensor. It receives the whole tensor in float32."""
        part = self.parts[ours]
        rows = part.shape[0]
        self.parts[ours] = replace(
            part, dtype=torch.float32, read=lambda i, j: function(part.read(0, rows).float())[i:j]
        )

    def multiply(self, ours: str, factor: float) -> None:
        """Multiply a mapped tensor by a factor, in float32."""
        part = self.parts[ours]
        self.parts[ours] = replace(part, dtype=torch.float32, read=lambda i, j: part.read(i, j).float() * factor)

    def affine(self, ours: str, theirs: str, *, optional_bias: bool = False) -> None:
        """Map weight and bias of a linear layer or LayerNorm. With `optional_bias`, a missing bias becomes zeros."""
        self.take(f"{ours}.weight", f"{theirs}.weight")
        if optional_bias and not self.has(f"{theirs}.bias"):
            self.put(f"{ours}.bias", torch.zeros(self.parts[f"{ours}.weight"].shape[0]))
        else:
            self.take(f"{ours}.bias", f"{theirs}.bias")

    def embeddings(self, source: str, target: str, projection: str) -> dict[str, Any]:
        """Map both embeddings and the projection's weight. Equal tables are stored once.

        Args:
            source, target, projection: names of the three tables in the imported model.

        Returns:
            fields of our config: vocabulary sizes and ties.

        Raises:
            CheckpointError: a table is missing, or is not a matrix.
        """
        rows = []
        for name in (source, target, projection):
            if len(shape := self.stored(name).shape) != 2:
                raise CheckpointError(f"{self.source}: {name} has shape {shape}, which no embedding has")
            rows.append(shape[0])
        share = source == target or self.same(source, target)
        tie = projection == target or self.same(target, projection)
        self.take("source_embedding.tokens.weight", source)
        if not share:
            self.take("target_embedding.tokens.weight", target)
        if not tie:
            self.take("projection.weight", projection)
        return {
            "source_vocabulary": rows[0],
            "target_vocabulary": rows[1],
            "share_embeddings": share,
            "tie_projection": tie,
        }

    def ignore(self, *names: str) -> None:
        """Mark optional tensors without information (computable tables, version numbers) as used."""
        self._used.update(names)

    def same(self, *names: str) -> bool:
        """Return whether all existing tensors among these have equal values. Only equal tensors are marked as used."""
        present = [name for name in names if self.has(name)]
        # Configs of old versions are unreliable about ties, so the values decide.
        are_equal = all(equal(self.theirs[present[0]], self.theirs[name]) for name in present[1:])
        if are_equal:
            self._used.update(present)
        return are_equal

    def check(self, config: Config) -> None:
        """Check that no tensor of the imported model is left over, and that all parameters have the shapes of `config`.

        An importer that does not map a parameter of `config` has a bug: that is an assertion.

        Raises:
            CheckpointError: tensors are left over, which the message lists, or a tensor has another shape. The message
                names the first of these.
        """
        shapes = parameter_shapes(config)
        # An unused tensor is usually a part of the model that txport lacks. Its results would be wrong without it.
        if unknown := sorted(self.theirs.keys() - self._used):
            raise CheckpointError(
                f"{self.source} has weights that this importer does not support and will not leave out: "
                f"{join_names(unknown)}"
            )
        assert shapes.keys() == self.parts.keys(), shapes.keys() ^ self.parts.keys()
        for name, shape in shapes.items():
            part = self.parts[name]
            if part.shape != shape:
                raise CheckpointError(
                    f"{self.source}: {part.origin} has shape {part.shape}, but its configuration needs {shape}"
                )

    def write(self, file: Path, advance: Callable[[], None] = lambda: None) -> None:
        """Write `file` as safetensors. At most one tensor is in memory: a changed one as a whole, others in parts.

        Args:
            file: replaced if it exists.
            advance: called after each tensor.

        Raises:
            CheckpointError: a tensor contains NaN or infinity.
        """
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, part in self.parts.items():
            size = part.dtype.itemsize * math.prod(part.shape)
            header[name] = {"dtype": _NAMES[part.dtype], "shape": part.shape, "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
        with file.open("wb") as output:
            output.write(struct.pack("<Q", len(text)) + text)
            for part in self.parts.values():
                rows = max(1, _AT_ONCE // max(1, math.prod(part.shape[1:])))
                for start in range(0, part.shape[0], rows):
                    tensor = part.read(start, min(start + rows, part.shape[0])).detach().to(part.dtype).contiguous()
                    # Here and not in `check`, since values are read only once. The directory is not yet published.
                    if not bool(torch.isfinite(tensor).all()):
                        raise CheckpointError(f"{self.source}: {part.origin} holds NaN or infinity")
                    output.write(tensor.flatten().view(torch.uint8).numpy().data)
                advance()

"""Bundles for the fused engine alone, in milliseconds: weights and their table, without graphs that could be run."""

from pathlib import Path
from typing import Literal

import numpy as np
from txport.models.positions import rotations
from txport.models.transformer import Transformer
from txport.runtime.bundle.interface import decoder_step, encoder
from txport.runtime.bundle.manifest import FORMAT_VERSION, WEIGHTS, Manifest, list_files
from txport.runtime.bundle.schema import (
    Architecture,
    Dimensions,
    Generation,
    Graph,
    MadeBy,
    Parameter,
    Parameters,
    ParameterType,
    Precision,
    Range,
    SpecialTokens,
)
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription

Form = Literal["float32", "float16", "int8"]
TIED = ("source_embedding.tokens.weight", "projection.weight")


def write_fused_bundle(directory: Path, model: Transformer, form: Form = "float32", batch: int = 16) -> Manifest:
    """Write what the engine reads: every tensor of the model contiguous, matrices in `form`, all else in float32."""
    config, longest = model.config, model.config.max_positions
    tensors = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    for side, stack in (("source_embedding", "encoder"), ("target_embedding", "decoder")):
        if config.positions == "relative":
            tensors[f"{stack}_positions.weight"] = getattr(model, f"{stack}_positions").table(longest).detach().numpy()
        elif config.positions == "rotary":
            for part, table in zip(
                ("cosines", "sines"), rotations(longest, getattr(config, stack).head_dim), strict=True
            ):
                tensors[f"{stack}_rotations.{part}"] = table.numpy()
        else:
            tensors[f"{side}.positions"] = getattr(model, side).positions.detach().numpy()
    shared = {name for name, tied in zip(TIED, (config.share_embeddings, config.tie_projection), strict=True) if tied}
    (directory / "onnx").mkdir(parents=True)
    for name in ("encoder", "decoder_step.ort"):
        (directory / "onnx" / f"{name}.onnx").write_bytes(b"not a graph")
    with (directory / WEIGHTS).open("wb") as output:

        def write(values: np.ndarray) -> int:
            output.write(b"\0" * (-output.tell() % 64))
            output.write(np.ascontiguousarray(values).tobytes())
            return output.tell() - values.nbytes

        table = []
        for name, values in tensors.items():
            if name in shared:
                continue
            if ".query." in name:
                values = values * np.float32(getattr(config, name.split(".")[0]).head_dim ** -0.5)
            matrix = values.ndim == 2 and "positions" not in name and "rotations" not in name
            dtype: ParameterType = form if matrix else "float32"
            scales = None
            if dtype == "int8":
                steps = np.abs(values).max(axis=1) / np.float32(127)
                values, scales = np.rint(values / steps[:, None]), write(steps)
            strides = (values.shape[1], 1) if values.ndim == 2 else (1,)
            table.append(Parameter(name, dtype, write(values.astype(dtype)), values.shape, strides, scales))
    scale = model.source_embedding.scale
    kinds = config.layer_norm_epsilon, config.norm_kind
    architecture = Architecture(config.norm, config.activation, scale, *kinds)  # type: ignore[arg-type]
    return _manifest(model, Parameters(architecture, tuple(table)), form, longest, batch, directory).write(directory)


def _manifest(
    model: Transformer, parameters: Parameters, form: Form, longest: int, batch: int, directory: Path
) -> Manifest:
    config, sizes = model.config, model.config.sizes
    type_: Literal["float32", "float16"] = "float16" if form == "float16" else "float32"
    graphs = []
    for name, role, lowering, of_role in (
        ("encoder", "encoder", "standard", encoder(sizes, type_)),
        ("decoder_step.ort", "decoder_step", "ort", decoder_step(sizes, type_)),
    ):
        ends = of_role.inputs, of_role.outputs, of_role.aliases
        graphs.append(Graph(name, role, lowering, False, f"onnx/{name}.onnx", {"": 18}, *ends))  # type: ignore[arg-type]
    return Manifest(
        format_version=FORMAT_VERSION,
        made_by=MadeBy("tests", "0"),
        model=sizes,
        tokens=SpecialTokens(config.pad_id, config.unk_id, config.bos_id, config.eos_id),
        dimensions=Dimensions(Range(1, 1, batch), Range(1, 1, longest), Range(1, 1, longest)),
        precision=Precision(type_, form, ()),
        graphs=tuple(graphs),
        tokenizer=TokenizerDescription("none", None, None, (), (), (), None),
        generation=Generation(),
        files=list_files(directory),
        verification=None,
        parameters=parameters,
    )

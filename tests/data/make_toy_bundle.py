"""Makes `toy_bundle/`: a whole bundle of some kilobytes whose answers can be worked out on paper.

Its step really uses what a runtime must keep right (cross keys and values with their padding, both caches at each row's
own position), but instead of a network it adds numbers, exactly, in float32:

    chosen = (9 * sum of source ids + 14 * sum over i of fed[i] * (i + 1)) mod 47

where `fed` is bos and the tokens made so far. So it makes ids 0 to 46, pad and eos among them, of a vocabulary of 96.

The directory is committed, so that tests of the runtime need neither torch nor onnx. To write it again:
`python tests/data/make_toy_bundle.py`
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import sentencepiece
from onnx import TensorProto, helper, numpy_helper
from toy import BATCH, BUNDLE, LIMIT, MADE, SOURCE, TOKENS, VOCABULARY, answer
from txport.runtime.bundle import interface
from txport.runtime.bundle.manifest import WEIGHTS, Manifest, list_files
from txport.runtime.bundle.schema import (
    Dimensions,
    Generation,
    Graph,
    Lowering,
    MadeBy,
    ModelSizes,
    Precision,
    Range,
    Tensor,
)
from txport.runtime.bundle.tokenizer_schema import plain
from txport.runtime.files import new_directory

HEADS = 2
SIZES = ModelSizes(1, 1, 2, HEADS, 1, VOCABULARY, VOCABULARY)
CACHES = ("self_key_0", "self_value_0")
CROSS = ("cross_key_0", "cross_value_0")
WORDS = "the a cat dog bird tree sees likes hears big small red blue and or not one two three four".split()
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


class Builder:
    """Collects the nodes of a graph; constants become initializers."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: object, dtype: str = "int64") -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def __call__(self, kind: str, *inputs: str, out: str = "", **attributes: object) -> str:
        name = out or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name


def encoder() -> Builder:
    """cross_key and cross_value of head h = id * (h + 1); cross_bias = -30000 on padding, where both are -1."""
    op = Builder()
    length = op("Gather", op("Shape", "input_ids"), op.constant(1))
    columns = op("Range", op.constant(0), length, op.constant(1))
    real = op("Less", op("Unsqueeze", columns, op.constant([0])), op("Unsqueeze", "source_lengths", op.constant([1])))
    ids = op("Cast", op("Where", real, "input_ids", op.constant(-1)), to=TensorProto.FLOAT)
    heads = op.constant(np.arange(1, HEADS + 1).reshape(1, HEADS, 1, 1), "float32")
    product = op("Mul", op("Unsqueeze", ids, op.constant([1, 3])), heads)
    for name in CROSS:
        op("Identity", product, out=name)
    bias = op("Where", real, op.constant(0, "float32"), op.constant(-30000, "float32"))
    op("Unsqueeze", bias, op.constant([1, 2]), out="cross_bias")
    return op


def decoder_step() -> Builder:
    """The sum of this file's first lines; `ids` is the one weight that lies in weights.bin."""
    op = Builder()
    position = op("Unsqueeze", "positions", op.constant([1, 2, 3]))
    fed = op("Unsqueeze", "token_ids", op.constant([1, 2, 3]))
    product = op("Cast", op("Mul", fed, op("Add", position, op.constant(1))), to=TensorProto.FLOAT)
    both = op.constant(np.ones((1, HEADS, 1, 1)), "float32")
    index = op("Add", position, op.constant(np.zeros((1, HEADS, 1, 1))))
    for name in CACHES:
        op("ScatterElements", name, index, op("Mul", product, both), out=f"next_{name}", axis=2)
    columns = op("Reshape", "cache_positions", op.constant([1, 1, -1, 1]))
    seen = op("Cast", op("LessOrEqual", columns, position), to=TensorProto.FLOAT)
    valid = op("Transpose", op("Greater", "cross_bias", op.constant(-1, "float32")), perm=[0, 1, 3, 2])
    valid = op("Cast", valid, to=TensorProto.FLOAT)
    total = op("Mul", op("Add", *(_sum(op, name, valid, head) for head, name in enumerate(CROSS))), _float(op, 3))
    caches = (_sum(op, f"next_{name}", seen, head) for head, name in enumerate(CACHES))
    total = op("Add", total, op("Mul", op("Add", *caches), _float(op, 7)))
    top = op("Mod", op("Cast", total, to=TensorProto.INT64), op.constant(MADE))
    distance = op("Sub", "ids", op("Unsqueeze", op("Cast", top, to=TensorProto.FLOAT), op.constant([1])))
    tilt = op("Mul", "ids", _float(op, 0.25))
    op("Sub", op("Unsqueeze", tilt, op.constant([0])), op("Mul", distance, distance), out="logits")
    _advance(op)
    return op


def _float(op: Builder, value: float) -> str:
    return op.constant(value, "float32")


def _sum(op: Builder, name: str, weights: str, head: int) -> str:
    """[batch]: the weighted sum over the third dimension of one head."""
    one = op("Slice", name, op.constant([head]), op.constant([head + 1]), op.constant([1]))
    return op("ReduceSum", op("Mul", one, weights), op.constant([1, 2, 3]), keepdims=0)


def _advance(op: Builder) -> None:
    """The state's part of every step."""
    chosen = op("ArgMax", "logits", axis=1, keepdims=0)
    token = op("Where", "finished", op.constant(TOKENS.pad), chosen, out="next_token_ids")
    full = op("GreaterOrEqual", op("Add", "positions", op.constant(1)), "target_limits")
    ended = op("Or", op("Equal", token, op.constant(TOKENS.eos)), full)
    done = op("Or", "finished", ended, out="next_finished")
    op("Add", "positions", op("Cast", op("Not", done), to=TensorProto.INT64), out="next_positions")


def model(op: Builder, sides: interface.Interface, opset: int, step: bool) -> onnx.ModelProto:
    """A checked ONNX model."""

    def infos(tensors: Sequence[Tensor]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(t.name, _TYPES[t.dtype], list(t.shape)) for t in tensors]

    graph = helper.make_graph(op.nodes, "toy", infos(sides.inputs), infos(sides.outputs), op.constants)
    if step:
        weights = TensorProto(name="ids", data_type=TensorProto.FLOAT, dims=[VOCABULARY])
        weights.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(4 * VOCABULARY))):
            weights.external_data.add(key=key, value=value)
        graph.initializer.append(weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="toy")


def models() -> dict[str, onnx.ModelProto]:
    """All graphs by name. `tensorscatter` has nothing of its own but the opset, which old versions do not know."""
    found = {"encoder": model(encoder(), interface.encoder(SIZES, "float32"), 18, step=False)}
    for name, opset in (("ort", 18), ("scatter", 18), ("tensorscatter", 24)):
        found[f"decoder_step.{name}"] = model(
            decoder_step(), interface.decoder_step(SIZES, "float32"), opset, step=True
        )
    return found


def records() -> tuple[Graph, ...]:
    """What the manifest says of the graphs."""
    of_encoder, of_step = interface.encoder(SIZES, "float32"), interface.decoder_step(SIZES, "float32")
    sides = of_encoder.inputs, of_encoder.outputs, of_encoder.aliases
    graphs = [Graph("encoder", "encoder", "standard", False, "onnx/encoder.onnx", {"": 18}, *sides)]
    steps: tuple[tuple[Lowering, int], ...] = (("ort", 18), ("scatter", 18), ("tensorscatter", 24))
    for lowering, opset in steps:
        name = f"decoder_step.{lowering}"
        sides = of_step.inputs, of_step.outputs, of_step.aliases
        graphs.append(Graph(name, "decoder_step", lowering, False, f"onnx/{name}.onnx", {"": opset}, *sides))
    return tuple(graphs)


def tokenizer() -> bytes:
    """A SentencePiece model of whole words and letters, padded by the vocabulary of the graphs."""
    lines = [" ".join(WORDS[(i * step) % len(WORDS)] for i in range(12)) for step in range(1, 60)]
    lines += list("abcdefghijklmnopqrstuvwxyz") * 3
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=VOCABULARY - 36,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        pad_id=TOKENS.pad,
        unk_id=TOKENS.unk,
        bos_id=TOKENS.bos,
        eos_id=TOKENS.eos,
        minloglevel=2,
        num_threads=1,
    )
    return out.getvalue()


def golden(model: bytes) -> dict[str, object]:
    """Cases with the ids that arithmetic says."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    texts = ["the cat sees a bird", "one", "a big red dog and a small blue bird", "not two or three", "hello there"]
    sources = [[*processor.encode(text), TOKENS.eos] for text in texts]
    cases = [
        {"source": text, "source_ids": ids, "target_ids": answer(ids)[0]}
        for text, ids in zip(texts, sources, strict=True)
    ]
    return {"format_version": 1, "cases": cases}


def write(directory: Path) -> None:
    """Write all files of the bundle."""
    for folder in ("onnx", "tokenizer"):
        (directory / folder).mkdir()
    (directory / WEIGHTS).write_bytes(np.arange(VOCABULARY, dtype="<f4").tobytes())
    for name, proto in models().items():
        (directory / "onnx" / f"{name}.onnx").write_bytes(proto.SerializeToString())
        onnx.checker.check_model(str(directory / "onnx" / f"{name}.onnx"), full_check=True)
    pieces = tokenizer()
    (directory / "tokenizer" / "shared.model").write_bytes(pieces)
    (directory / "golden.json").write_text(json.dumps(golden(pieces), indent=1) + "\n")
    manifest = Manifest(
        format_version=1,
        made_by=MadeBy("toy", "1"),
        model=SIZES,
        tokens=TOKENS,
        dimensions=Dimensions(Range(1, 4, BATCH), Range(1, 8, SOURCE), Range(1, 32, LIMIT)),
        precision=Precision("float32", "float32", ()),
        graphs=records(),
        tokenizer=plain("tokenizer/shared.model", "tokenizer/shared.model", TOKENS.eos),
        generation=Generation(),
        files=list_files(directory),
        verification=None,
    )
    manifest.write(directory)


if __name__ == "__main__":
    with new_directory(BUNDLE, replace=True, marker="manifest.json") as directory:
        write(directory)

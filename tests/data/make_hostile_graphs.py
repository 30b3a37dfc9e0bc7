"""Makes `hostile_graphs.json`: graphs that no export writes, as hexadecimal digits, and words of their refusal.

Both runtimes must refuse each of them. To write it again: `python tests/data/make_hostile_graphs.py`
"""

import json
import struct
from pathlib import Path

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper

FILE = Path(__file__).with_name("hostile_graphs.json")
WEIGHTS_BYTES = 4096


def weight(location: str = "weights.bin", offset: object = 0, length: object = 1200, **more: str) -> TensorProto:
    """A weight of 300 float32 numbers in a file."""
    tensor = TensorProto(name="w", dims=[300], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": offset, "length": length, **more}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(*tensors: TensorProto, nodes: tuple[NodeProto, ...] = (), domain: str = "") -> ModelProto:
    graph = helper.make_graph(list(nodes), "g", [], [], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 18)], producer_name="txport")


def node(kind: str, *attributes: AttributeProto, domain: str = "") -> NodeProto:
    made = helper.make_node(kind, ["x"], ["y"], domain=domain)
    made.attribute.extend(attributes)
    return made


def _changed(**fields: object) -> TensorProto:
    tensor = weight()
    for name, value in fields.items():
        if name == "dims":
            del tensor.dims[:]
            tensor.dims.extend(value)  # type: ignore[arg-type]
        else:
            setattr(tensor, name, value)
    return tensor


def _places() -> dict[str, tuple[ModelProto, str]]:
    """External data that is elsewhere."""
    outside = "is not a range of 1200 bytes inside weights.bin"
    found = {
        "absolute path": (weight("/etc/passwd"), "is in the file '/etc/passwd'"),
        "parent": (weight("../../secret"), "is in the file '../../secret'"),
        "another file": (weight("golden.json"), "is in the file 'golden.json'"),
        "dotted path": (weight("./weights.bin"), "is in the file './weights.bin'"),
        "address": (weight("*/_ORT_MEM_ADDR_/*", 4096), "is in the file '*/_ORT_MEM_ADDR_/*'"),
        "ends behind the file": (weight(offset=WEIGHTS_BYTES - 1199), outside),
        "far behind the file": (weight(offset=2**63), outside),
        "sum that overflows": (weight(offset=2**64 - 1200), "has the offset or length '18446744073709550416'"),
        "other length": (weight(length=1201), outside),
        "negative offset": (weight(offset=-8), "has the offset or length '-8'"),
        "offset that is no number": (weight(offset="0x10"), "has the offset or length '0x10'"),
        "empty offset": (weight(offset=""), "has the offset or length ''"),
        "another key": (weight(checksum="0"), "has more than one location, offset or length"),
        "negative size": (_changed(dims=[-300]), "is not a range of"),
        "huge size": (_changed(dims=[2**62, 2**62]), "is not a range of"),
        "many dimensions": (_changed(dims=[1] * 9), "has 9 dimensions"),
        "strings": (_changed(data_type=TensorProto.STRING), "has a type that tx-export does not write"),
        "both places": (_changed(raw_data=bytes(1200)), "is neither in the graph nor in a file"),
        "place that is not used": (_changed(data_location=TensorProto.DEFAULT), "is neither in the graph nor"),
    }
    twice = weight()
    twice.external_data.add(key="location", value="/etc/passwd")
    found["two locations"] = (twice, "has more than one location, offset or length")
    nowhere = weight()
    del nowhere.external_data[:]
    found["no location"] = (nowhere, "is neither in the graph nor in a file")
    short = TensorProto(name="w", dims=[300], data_type=TensorProto.FLOAT, raw_data=bytes(1196))
    found["short data"] = (short, "has 1196 bytes instead of 1200")
    empty = TensorProto(name="w", dims=[1 << 20, 1 << 20], data_type=TensorProto.FLOAT)
    found["no data"] = (empty, "has fewer than 1099511627776 elements")
    return {name: (model(tensor), words) for name, (tensor, words) in found.items()}


def _nodes() -> dict[str, tuple[ModelProto, str]]:
    """Operators and attributes of others."""
    inner = helper.make_graph([], "inner", [], [], [weight("/etc/passwd")])
    sparse = onnx.SparseTensorProto(values=weight("/etc/passwd"), indices=weight(), dims=[300])
    attribute = "contains an attribute with the field {}, which tx-export does not write"
    found = {
        "loop": (node("Loop"), "contains the operator 'Loop'"),
        "if": (node("If", helper.make_attribute("then_branch", inner)), attribute.format(6)),
        "constant of any size": (node("ConstantOfShape"), "contains the operator 'ConstantOfShape'"),
        "other domain": (node("Add", domain="evil"), "contains the operator 'evil.Add'"),
        "contributed operator of the standard": (node("QGemm"), "contains the operator 'QGemm'"),
        "tensor in an attribute": (node("Add", helper.make_attribute("t", weight("/etc/passwd"))), attribute.format(5)),
        "tensors": (node("Add", AttributeProto(name="t", tensors=[weight("/etc/passwd")])), attribute.format(10)),
        "graphs": (node("Add", AttributeProto(name="g", graphs=[inner])), attribute.format(11)),
        "sparse tensor": (node("Add", AttributeProto(name="s", sparse_tensor=sparse)), attribute.format(22)),
        "sparse tensors": (node("Add", AttributeProto(name="s", sparse_tensors=[sparse])), attribute.format(23)),
        "reference": (node("Add", AttributeProto(name="r", ref_attr_name="x")), attribute.format(21)),
    }
    return {name: (model(nodes=(each,)), words) for name, (each, words) in found.items()}


def _sizes() -> dict[str, tuple[ModelProto, str]]:
    """Operators whose outputs are as large as a number in the graph."""
    large = helper.make_tensor("n", TensorProto.INT64, [1], struct.pack("<q", 1 << 40), raw=True)
    one = helper.make_tensor("one", TensorProto.INT64, [1], struct.pack("<q", 1), raw=True)
    shape = helper.make_node("Shape", ["x"], ["shape"])
    product = helper.make_node("Mul", ["shape", "shape"], ["n"])
    joined = helper.make_node("Concat", ["shape", "n"], ["sizes"], axis=0)
    external = weight()
    external.name, external.data_type, external.dims[0] = "n", TensorProto.INT64, 150
    found = {}
    for kind, inputs in (("Expand", ["x", "n"]), ("Pad", ["x", "n"]), ("Range", ["one", "n", "one"])):
        sized = helper.make_node(kind, inputs, ["y"])
        words = f"contains the operator '{kind}' with sizes that tx-export does not write"
        found[f"{kind} by a constant"] = (model(large, one, nodes=(sized,)), words)
        found[f"{kind} by a product"] = (model(one, nodes=(shape, product, sized)), words)
        found[f"{kind} by a file"] = (model(one, external, nodes=(sized,)), words)
        found[f"{kind} by an input"] = (model(one, nodes=(sized,)), words)
        joining = helper.make_node(kind, ["sizes" if name == "n" else name for name in inputs], ["y"])
        found[f"{kind} by a joined constant"] = (model(large, one, nodes=(shape, joined, joining)), words)
    return found


def _models() -> dict[str, tuple[bytes, str]]:
    """Other parts of a model, and bytes that are none."""
    sparse = model()
    sparse.graph.sparse_initializer.add(values=weight("/etc/passwd"), dims=[300])
    renamed = model(nodes=(helper.make_node("Expand", ["x", "n"], ["y"]),))
    named = b"\x08\x01\x10\x07\x42\x01n\x42\x01m\x4a\x08" + struct.pack(
        "<q", 1
    )  # protobuf's parsers take the last name
    renamed_graph = renamed.graph.SerializeToString() + b"\x2a" + bytes([len(named)]) + named
    renamed_model = b"\x3a" + bytes([len(renamed_graph)]) + renamed_graph
    functions = model()
    functions.functions.add(name="f", domain="", node=[node("Loop")])
    training = model()
    training.training_info.add()
    plain = model(weight()).SerializeToString()
    wide_tag = b"\xba\x80\x80\x80\x10" + b"\x00"  # 58 + 2**32, which protobuf's parsers cut to 58: the graph
    return {
        "sparse initializer": (sparse.SerializeToString(), "contains the graph with the field 15"),
        "two names": (renamed_model, "contains the operator 'Expand' with sizes"),
        "functions": (functions.SerializeToString(), "contains the model with the field 25"),
        "training": (training.SerializeToString(), "contains the model with the field 20"),
        "domain": (model(domain="ai.onnx.ml").SerializeToString(), "uses operators of the domain 'ai.onnx.ml'"),
        "two graphs": (plain + plain, "contains 2 graphs instead of one"),
        "no graph": (b"", "contains 0 graphs instead of one"),
        "graph that is a number": (plain + b"\x38\x01", "contains the model with the field 7"),
        "tag of five bytes": (plain + wide_tag, "is not an ONNX model"),
        "group": (plain + b"\x3b\x3c", "is not an ONNX model"),
        "cut": (plain[:-1], "is not an ONNX model"),
        "number without an end": (b"\x80" * 11, "is not an ONNX model"),
    }


def cases() -> dict[str, tuple[bytes, str]]:
    """Bytes of each graph, and words of its refusal."""
    written = {
        name: (each.SerializeToString(), words) for name, (each, words) in (_places() | _nodes() | _sizes()).items()
    }
    return written | _models()


if __name__ == "__main__":
    refused = {name: {"model": data.hex(), "words": words} for name, (data, words) in cases().items()}
    FILE.write_text(json.dumps({"weights": WEIGHTS_BYTES, "refused": refused}, indent=1) + "\n")

"""The graphs' contract: what C++ is compared with is what Python says, and what the toy bundle's graphs have."""

import json

import make_interface
import pytest
from toy import BUNDLE
from txport.runtime.bundle.interface import interface
from txport.runtime.bundle.manifest import Manifest


def test_the_file_for_cpp_is_what_python_says() -> None:
    assert json.loads(make_interface.FILE.read_text()) == make_interface.value()


def test_graphs_of_a_bundle_have_it() -> None:
    manifest = Manifest.load(BUNDLE)
    for graph in manifest.graphs:
        expected = interface(graph.role, manifest.model, manifest.precision.type)
        assert expected is not None
        assert (graph.inputs, graph.outputs, graph.aliases) == (expected.inputs, expected.outputs, expected.aliases)


def test_every_alias_joins_tensors_of_one_form() -> None:
    for sizes, floating in make_interface.MODELS:
        step = interface("decoder_step", sizes, floating)
        assert step is not None
        inputs, outputs = ({t.name: (t.dtype, t.shape) for t in side} for side in (step.inputs, step.outputs))
        assert len(step.aliases) == 3 + 2 * sizes.decoder_layers
        for name, output in step.aliases:
            assert inputs[name] == outputs[output]


@pytest.mark.parametrize("role", ["critic", "", "Encoder"])
def test_other_roles_have_none(role: str) -> None:
    assert interface(role, *make_interface.MODELS[0]) is None

"""All that the exporter writes passes the rules by which runtimes refuse graphs."""

import re
from pathlib import Path

import pytest
from txport.exporter.export import ExportOptions, export_bundle
from txport.runtime.bundle.graph_rules import OPERATORS, checked_graph
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.console.progress import Stages

SOURCES = sorted((Path(__file__).parents[3] / "exporter" / "graphs").glob("*.py"))


def test_every_operator_in_the_exporters_sources_is_allowed() -> None:
    """Names in calls that write nodes, of every kind of model and precision."""
    text = "".join(path.read_text() for path in SOURCES)
    named = set(re.findall(r'\b(?:op|ops|_node)\(\s*(?:node, )?(?:"", |CONTRIB, )?"([A-Z]\w+)"', text))
    named |= {name for kind in ("Skip", "SkipSimplified") for name in re.findall(rf'"({kind}\w+)"', text)}
    assert len(named) > 50 and named <= OPERATORS[""] | OPERATORS["com.microsoft"]


@pytest.mark.parametrize("name", ["bundle", "float16_bundle", "island_bundle", "int8_bundle", "attention_bundle"])
def test_graphs_of_every_precision_pass(name: str, request: pytest.FixtureRequest) -> None:
    directory = request.getfixturevalue(name)
    graphs = Manifest.load(directory).graphs
    for graph in graphs:
        checked_graph(directory, graph.file)
    assert len(graphs) >= 2


@pytest.mark.parametrize(
    "options", [ExportOptions(beams=True, verify=False), ExportOptions(int8=True, lowerings=("ort",), verify=False)]
)
def test_optional_graphs_pass(options: ExportOptions, rotary_checkpoint: Path, tmp_path: Path) -> None:
    with Stages() as stages:
        export_bundle(rotary_checkpoint, tmp_path / "bundle", options, stages)
    for graph in Manifest.load(tmp_path / "bundle").graphs:
        checked_graph(tmp_path / "bundle", graph.file)

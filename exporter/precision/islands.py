"""Selection of nodes of a float16 graph that must stay in float32 (islands), measured on real sentences.

There are two reasons for islands. Overflow: a node reads or writes a value near the largest of float16 (65504). Loss:
rounding all values to float16 would change the chosen tokens. Then the modules whose rounding matters most are kept in
float32, one after another, until the tokens agree.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir
import onnxruntime
from txport.exporter.bundle import write_graphs
from txport.exporter.graphs.float16 import final_nodes, round_results, to_float16
from txport.exporter.graphs.norms import module_of
from txport.exporter.precision.calibration import Calibration, Loss, magnitude
from txport.exporter.precision.sessions import TeacherForced, session
from txport.exporter.verification.quality import MAX_CHANGED
from txport.runtime.bundle.interface import FEATURES
from txport.runtime.bundle.schema import Island
from txport.runtime.errors import CheckFailed
from txport.runtime.version import VERSION

# Half of float16's largest value, since calibration uses only some sentences.
OVERFLOW = 65504 / 2
# Near feed-forward layers of T5, some sentences have much larger values than others. Hugging Face always keeps the last
# product (`wo`) in float32. Here calibration values near these layers are multiplied by this factor.
GROWTH = 8
# Loss of logit by another choice that counts as loss: a factor of 1.1 in probability. Choices that are closer may
# differ, within the limits of the verification.
REGRET = 0.1

# Module that mixes generated and copied probabilities. Float16 is not precise enough for it.
MIXTURE = "copying"

# For each optional graph, the graph that has the same modules.
LIKE = {"decoder": "decoder_step", "decoder_beams": "decoder_step", "encoder_attention": "encoder"}

Scope = tuple[str, str]  # graph ("encoder" or "decoder_step.<lowering>"), and module in it


def choose_islands(
    directory: Path, files: dict[str, Path], calibration: Calibration, progress: Callable[[str], None]
) -> list[Island]:
    """Run float32 graphs on sentences and return the nodes that must not become float16.

    Args:
        directory: for temporary files.
        files: float32 graph files by name: `encoder` and `decoder_step.<lowering>`.
        calibration: the sentences.
        progress: called with the name of each stage.

    Raises:
        CheckFailed: a cache or another input or output would overflow, so the model is not possible in float16.
    """
    models = {name: ir.load(file) for name, file in files.items()}
    mixtures = {name: mixture_nodes(model) for name, model in models.items()}
    islands = {name: nodes - mixtures[name] for name, nodes in _overflow_islands(files, calibration, progress).items()}
    probe = ["encoder", list(files)[-1]]  # all lowerings have the same modules, so one is enough

    @lru_cache(maxsize=len(probe))  # each trial changes only one of the graphs
    def half(name: str, scopes: frozenset[Scope]) -> onnxruntime.InferenceSession:
        model = models[name].clone()
        to_float16(model, _within(name, model, scopes) | islands[name] | mixtures[name])
        round_results(model)
        with TemporaryDirectory(dir=directory) as folder:  # the session needs no file later
            (file,) = write_graphs(Path(folder), {name: model}, VERSION).values()
            return session(file)

    def loss(scopes: Sequence[Scope]) -> Loss:
        graphs = (half(name, frozenset(scope for scope in scopes if scope[0] == name)) for name in probe)
        return calibration.loss(TeacherForced(*graphs))

    progress("FP16: measuring the loss")
    scopes = lossy_scopes(loss, [(name, scope) for name in probe for scope in _scopes(models[name])])
    result = [Island(name, tuple(sorted(nodes)), "overflow") for name, nodes in islands.items() if nodes]
    result += islands_of_mixtures(models)
    for name, model in models.items():
        if nodes := _within(name, model, scopes) - islands[name]:
            result.append(Island(name, tuple(sorted(nodes)), "loss"))
    return result


def islands_of_attention(
    islands: Sequence[Island], models: Mapping[str, ir.Model], nodes_of: Callable[[ir.Model], Iterable[ir.Node]]
) -> list[Island]:
    """Return islands of the optional graphs among `models`: the modules that have islands in the encoder or a step.

    Args:
        islands: of the other graphs.
        models: float32 graphs by name.
        nodes_of: returns the nodes of a graph that the precision applies to.
    """
    result = []
    for name, like in LIKE.items():
        modules = {node.rpartition("/")[0] for i in islands if i.graph.split(".")[0] == like for node in i.nodes}
        modules = {module for module in modules if module.split(".")[0] != MIXTURE}
        nodes = (
            {node.name or "" for node in nodes_of(models[name]) if module_of(node) in modules} if name in models else ()
        )
        if nodes:
            result.append(Island(name, tuple(sorted(nodes)), "loss"))
    return result


def mixture_nodes(model: ir.Model) -> set[str]:
    """Return nodes of the copy mechanism, for float32, except the selection of a head (it converts whole keys)."""
    copying = [node for node in model.graph if module_of(node).split(".")[0] == MIXTURE]
    return {node.name or "" for node in copying if not any(map(_is_float_input, node.inputs))}


def _is_float_input(value: ir.Value | None) -> bool:
    return value is not None and value.is_graph_input() and value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def islands_of_mixtures(models: Mapping[str, ir.Model]) -> list[Island]:
    """Return the islands of `mixture_nodes`."""
    islands = [Island(name, tuple(sorted(mixture_nodes(model))), "mixture") for name, model in models.items()]
    return [island for island in islands if island.nodes]


def islands_of_outputs(models: Mapping[str, ir.Model]) -> list[Island]:
    """Return islands of nodes whose outputs stay in float32; see `txport.exporter.graphs.float16.final_nodes`."""
    islands = [Island(name, tuple(sorted(final_nodes(model))), "output") for name, model in models.items()]
    return [island for island in islands if island.nodes]


def island_nodes(islands: Sequence[Island], graph: str) -> set[str]:
    """Return the names of nodes of one graph that stay in float32."""
    return {node for island in islands if island.graph == graph for node in island.nodes}


def _overflow_islands(
    files: dict[str, Path], calibration: Calibration, progress: Callable[[str], None]
) -> dict[str, set[str]]:
    islands: dict[str, set[str]] = {}
    encoder = files["encoder"]
    for name, step in files.items():
        if name != "encoder":
            progress(f"FP16: ranges of {name}")
            of_encoder, of_step = calibration.ranges(encoder, step)
            islands["encoder"] = _overflowing(ir.load(encoder), of_encoder)
            islands[name] = _overflowing(ir.load(step), of_step)
    return islands


def _overflowing(model: ir.Model, largest: dict[str, float]) -> set[str]:
    """Return nodes that read or write a value larger than `OVERFLOW`."""
    values = dict(largest)
    for name, value in model.graph.initializers.items():
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            values[name] = magnitude(value.const_value.numpy())
    for name in _growing(model):
        values[name] = values.get(name, 0.0) * GROWTH
    for value in [*model.graph.inputs, *model.graph.outputs]:
        if value.name != FEATURES and values.get(value.name or "", 0.0) > OVERFLOW:
            raise CheckFailed(
                f"float16 cannot hold this model: {value.name} reaches {values[value.name or '']:.0f} on the "
                f"calibration sentences; export it without --fp16"
            )
    nodes = set()
    for node in model.graph:
        reached = [values.get(value.name or "", 0.0) for value in [*node.inputs, *node.outputs] if value is not None]
        if max(reached, default=0.0) > OVERFLOW:
            if _reads_cache(node):
                raise CheckFailed(
                    f"float16 cannot hold this model: {node.name}, which writes a cache, reads values up to "
                    f"{max(reached):.0f} on the calibration sentences; export it without --fp16"
                )
            nodes.add(node.name or "")
    return nodes


def _growing(model: ir.Model) -> set[str]:
    """Return values near the last product of each feed-forward layer of T5: input, output and residual sum."""
    if not any(module_of(node).endswith("coder_positions") for node in model.graph):
        return set()
    outer = [node for node in model.graph if module_of(node).endswith("feed_forward.outer")]
    readers = [use.node for node in outer for use in node.outputs[0].uses()]
    values = [node.inputs[0] for node in outer] + [value for node in outer + readers for value in node.outputs]
    return {value.name for value in values if value is not None and value.name}


def _reads_cache(node: ir.Node) -> bool:
    """Return whether a node must stay in float16, since casting whole caches would cost more than the step."""
    return any(value is not None and (value.name or "").startswith("self_") for value in node.inputs)


def _scopes(model: ir.Model) -> list[str]:
    """Return modules of a graph that may become islands, in order."""
    modules = dict.fromkeys(module_of(n) for n in model.graph if module_of(n) and not _reads_cache(n))
    return [module for module in modules if module.split(".")[0] != MIXTURE]


def _within(name: str, model: ir.Model, scopes: Collection[Scope]) -> set[str]:
    """Return nodes of a graph in these pairs (graph kind, module), except nodes that write a cache."""
    modules = {scope for graph, scope in scopes if graph.split(".")[0] == name.split(".")[0]}
    return {n.name or "" for n in model.graph if module_of(n) in modules and not _reads_cache(n)}


def lossy_scopes(measure: Callable[[Sequence[Scope]], Loss], candidates: list[Scope]) -> list[Scope]:
    """Select modules greedily: add the module that helps most until the tokens agree or nothing helps.

    Errors of modules add up nearly like independent noise, so the gain of one in mean square depends little on others.
    Therefore a module is measured again only if its last gain is above the best new one (lazy evaluation; Minoux,
    "Accelerated Greedy Algorithms for Maximizing Submodular Set Functions", 1978).

    Args:
        measure: returns the loss with these modules in float32.
        candidates: modules; for equal gains the first is added.
    """
    selected: list[Scope] = []
    current = measure(selected)
    gains = dict.fromkeys(candidates, math.inf)
    while gains and (current.changed > MAX_CHANGED or current.regret > REGRET):
        trials: dict[Scope, Loss] = {}
        while (best := max(gains, key=gains.__getitem__)) not in trials:
            trials[best] = trial = measure([*selected, best])
            gains[best] = current.rms**2 - trial.rms**2 if math.isfinite(trial.rms) else 0.0
        if not gains.pop(best) > 0:
            break
        selected.append(best)
        current = trials[best]
        gains = {scope: max(gain, 0.0) for scope, gain in gains.items()}  # modules that did not help may help now
    return selected

"""Graphs that a bundle has if it was exported with them."""

from txport.runtime.bundle.archive import Files
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Graph, OptionalRole
from txport.runtime.errors import BundleError

_NEEDED = {
    "decoder": "alignments, attention, replace_unknowns and the scores of given translations need",
    "encoder_attention": "embeddings and the encoder's attention need",
}


def graph_of(bundle: Files, manifest: Manifest, role: OptionalRole) -> Graph:
    """Return the graph of a role.

    Raises:
        BundleError: the bundle has none.
    """
    graph = manifest.optional_graph(role)
    if graph is None:
        raise BundleError(
            f"{bundle} has no graph of the role {role!r}, which {_NEEDED[role]}: "
            "export it again with tx-export --with-attention"
        )
    return graph

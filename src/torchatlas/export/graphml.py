"""Graph -> GraphML: what yEd, Cytoscape, Gephi, igraph and networkx read. One node per node, one edge per edge.

Modules are attributes of nodes: of the tools named, yEd alone reads graphs in graphs. Written in pieces: networkx would
hold the whole file as objects first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torchatlas.escapes import encodable
from torchatlas.export.node_fields import Field, edge_fields, node_fields
from torchatlas.export.xml_text import Attribute, xml_elements, xml_text
from torchatlas.files import replacing
from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">\n'
)


@WRITERS.add(".graphml")
def save_graphml(graph: Graph, path: Path) -> None:
    """Write nodes with typed attributes (operation, phase, module, shape, flops, time_ns ...) and edges with slots."""
    with replacing(path) as file:
        for piece in graphml_pieces(graph):
            file.write(piece.encode())


def graphml_pieces(graph: Graph) -> Iterator[str]:
    """The text of the file, piece by piece."""
    (nodes, missing), edges = node_fields(graph), edge_fields(graph)
    about = {"source": graph.source, "notes": "\n".join([*graph.notes, missing]).strip()}
    yield _HEAD
    for name in about:
        yield f'<key id="g_{name}" for="graph" attr.name="{name}" attr.type="string"/>\n'
    for letter, what, fields in (("n", "node", nodes), ("e", "edge", edges)):
        for at, field in enumerate(fields):
            kind = "long" if field.is_number else "string"
            yield f'<key id="{letter}{at}" for="{what}" attr.name="{field.name}" attr.type="{kind}"/>\n'
    yield '<graph id="graph" edgedefault="directed">\n'
    for name, text in about.items():
        if text:
            yield f'<data key="g_{name}">{xml_text(encodable(text))}</data>\n'
    starts = (f'<node id="{node}">' for node in range(len(graph)))
    yield from xml_elements(starts, _attributes(nodes, "n"), "</node>\n")
    ends = zip(graph.columns["edge_source"].tolist(), graph.columns["edge_target"].tolist(), strict=True)
    starts = (f'<edge id="e{at}" source="{source}" target="{target}">' for at, (source, target) in enumerate(ends))
    yield from xml_elements(starts, _attributes(edges, "e"), "</edge>\n")
    yield "</graph>\n</graphml>\n"


def _attributes(fields: Sequence[Field], letter: str) -> list[Attribute]:
    return [Attribute(f'<data key="{letter}{at}">', field.items, "</data>") for at, field in enumerate(fields)]

"""Graph -> GEXF 1.2, the format of Gephi: one node per node, one edge per edge, all attributes typed.

Modules are attributes of nodes, by which Gephi groups and colours: it gave up nodes in nodes with version 0.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torchatlas.escapes import encodable
from torchatlas.export.node_fields import Field, edge_fields, node_fields
from torchatlas.export.xml_text import Attribute, remembering, xml_elements, xml_text
from torchatlas.files import replacing
from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS
from torchatlas.graph.names import origin

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<gexf xmlns="http://www.gexf.net/1.2draft" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xsi:schemaLocation="http://www.gexf.net/1.2draft http://www.gexf.net/1.2draft/gexf.xsd" version="1.2">\n'
)


@WRITERS.add(".gexf")
def save_gexf(graph: Graph, path: Path) -> None:
    """Write nodes with typed attributes (operation, phase, module, shape, flops, time_ns ...) and edges with slots."""
    with replacing(path) as file:
        for piece in gexf_pieces(graph):
            file.write(piece.encode())


def gexf_pieces(graph: Graph) -> Iterator[str]:
    """The text of the file, piece by piece."""
    text, (nodes, missing), edges = remembering(), node_fields(graph), edge_fields(graph)
    notes = " ".join([*graph.notes, missing]).strip()
    about = xml_text(encodable(f"Graph of {origin(graph.source)}. {notes}".strip()))
    yield f"{_HEAD}<meta><creator>torchatlas</creator><description>{about}</description></meta>\n"
    yield '<graph defaultedgetype="directed" mode="static">\n'
    for what, fields in (("node", nodes), ("edge", edges)):
        yield f'<attributes class="{what}" mode="static">\n'
        for at, field in enumerate(fields):
            kind = "long" if field.is_number else "string"
            yield f'<attribute id="{at}" title="{field.name}" type="{kind}"/>\n'
        yield "</attributes>\n"
    names = graph.index.names()
    starts = (f'<node id="{node}" label="{text(encodable(name))}"><attvalues>' for node, name in enumerate(names))
    yield "<nodes>\n"
    yield from xml_elements(starts, _attributes(nodes), "</attvalues></node>\n")
    yield "</nodes>\n<edges>\n"
    ends = zip(graph.columns["edge_source"].tolist(), graph.columns["edge_target"].tolist(), strict=True)
    starts = (
        f'<edge id="{at}" source="{source}" target="{target}"><attvalues>' for at, (source, target) in enumerate(ends)
    )
    yield from xml_elements(starts, _attributes(edges), "</attvalues></edge>\n")
    yield "</edges>\n</graph>\n</gexf>\n"


def _attributes(fields: Sequence[Field]) -> list[Attribute]:
    return [Attribute(f'<attvalue for="{at}" value="', field.items, '"/>') for at, field in enumerate(fields)]

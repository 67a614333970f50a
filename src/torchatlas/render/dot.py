"""Graph -> DOT, the language of Graphviz: modules as clusters, tensors as edges. Graphviz itself is not needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS

if TYPE_CHECKING:
    from torchatlas.render.text_diagram import Part, SketchLine


@WRITERS.add(".dot", ".gv")
def write_dot(graph: Graph, path: Path) -> None:
    """Write the text of `dot_text`."""
    path.write_bytes(dot_text(graph).encode())


def dot_text(graph: Graph, most_boxes: int = 200) -> str:
    """The graph in DOT. Modules are open from the outside in while there are at most `most_boxes` boxes.

    A title that begins with + is a closed group; ×12 stands for twelve equal ones in a row. A dashed edge carries the
    tensors that a repeat hands to its next round, a thick edge all tensors that one phase takes from another.
    """
    from torchatlas.render.text_diagram import sketch
    from torchatlas.render.theme import LIGHT

    diagram = sketch(graph, most_boxes)
    lines = [
        "digraph {",
        f'  graph [compound=true, fontname="Helvetica", fontsize=12, fontcolor="{LIGHT.ink}", labeljust=l];',
        '  node [shape=box, style=filled, fontname="Helvetica", fontsize=11, height=0.3, margin="0.12,0.05"];',
        f'  edge [color="{LIGHT.edge}", fontname="Helvetica", fontsize=9, fontcolor="{LIGHT.soft}", arrowsize=0.6];',
    ]
    if diagram.title:
        lines.append(f"  label={quoted(diagram.title)}; labelloc=t;")
    for part in diagram.parts:
        _add(lines, part, "  ")
    parts = {part.number: part for part in diagram.walk()}
    lines += [_edge(line, parts) for line in diagram.lines]
    return "\n".join([*lines, "}", ""])


def quoted(*rows: str) -> str:
    r"""Rows of a label as one quoted string.

    Graphviz obeys backslashes and entities in labels; written so, it shows them. HTML labels begin with < and no quote.

    >>> print(quoted('a "b" <c> &lt;', "\\N"))
    "a \"b\" <c> &amp;lt;\n\\N"
    """
    safe = (row.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for row in rows if row)
    return '"' + "\\n".join(safe) + '"'


def _add(lines: list[str], part: Part, indent: str) -> None:
    from torchatlas.render.svg import isolated

    fill, stroke, ink = part.colours()
    title, subtitle = isolated(part.title), isolated(part.subtitle)
    if part.is_open:
        label = quoted(" · ".join(row for row in (title, subtitle) if row))
        lines.append(f"{indent}subgraph cluster_{part.number} {{")
        # A cluster inherits every attribute that it does not set itself.
        lines.append(f'{indent}  graph [label={label}, style="rounded,filled", fillcolor="{fill}", color="{stroke}"];')
        for inner in part.inner:
            _add(lines, inner, indent + "  ")
        lines.append(indent + "}")
        return
    more = f', fillcolor="{fill}", color="{stroke}", fontcolor="{ink}"'
    if part.kind == "terminal":
        more += ', style="rounded,filled"'
    if part.repeat > 1:
        more += ", peripheries=2"
    lines.append(f"{indent}n{part.number} [label={quoted(title, subtitle)}{more}];")


def _edge(line: SketchLine, parts: dict[int, Part]) -> str:
    from torchatlas.render.text_diagram import LineKind

    source, target = parts[line.source], parts[line.target]
    more = [f"label={quoted(line.label)}"] if line.label else []
    if line.kind == LineKind.AGAIN:
        more.append("style=dashed, constraint=false")  # it leads back, so it must not set ranks
    elif line.kind == LineKind.KEPT:
        more.append("style=bold")
        # An edge of DOT joins nodes; ltail and lhead end it at the clusters around them.
        more += [f"ltail=cluster_{source.number}"] if source.is_open else []
        more += [f"lhead=cluster_{target.number}"] if target.is_open else []
    options = f" [{', '.join(more)}]" if more else ""
    return f"  n{source.boxes()[-1].number} -> n{target.boxes()[0].number}{options};"

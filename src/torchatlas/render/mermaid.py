"""Graph -> Mermaid text: a flowchart that GitHub, GitLab and many editors draw. Modules are subgraphs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS

if TYPE_CHECKING:
    from torchatlas.render.text_diagram import Part, Sketch, SketchLine

# Mermaid's own defaults, maxEdges and maxTextSize: it draws nothing beyond them, and a web page rarely changes them.
_MOST_LINES = 500
_MOST_CHARACTERS = 50_000
_FEWEST_BOXES = 8

# All but letters, digits and a few signs that mean nothing to Mermaid, nor to the Markdown that its labels are read as.
# A dot is safe within a word, unless that makes it an address.
_UNSAFE = re.compile(r"[^\w ,.×→·…]|_|\.(?!\w)|(?<!\w)\.|(?<=[wW]{3})\.")


@WRITERS.add(".mmd")
def write_mermaid(graph: Graph, path: Path) -> None:
    """Write the text of `mermaid_text`."""
    path.write_bytes(mermaid_text(graph).encode())


def mermaid_text(graph: Graph, most_boxes: int = 80) -> str:
    """The graph as a flowchart. Modules are open from the outside in while there are at most `most_boxes` boxes.

    There are fewer boxes where Mermaid would refuse to draw: beyond 500 edges or 50,000 characters. A title that begins
    with + is a closed group; ×12 stands for twelve equal ones in a row. A dotted edge carries the tensors that a repeat
    hands to its next round, a thick edge all tensors that one phase takes from another.
    """
    from torchatlas.render.layout.tree import build
    from torchatlas.render.text_diagram import sketch

    tree = build(graph)
    while True:
        diagram = sketch(tree, most_boxes)
        text = _text(diagram)
        fits = len(diagram.lines) <= _MOST_LINES and len(text) <= _MOST_CHARACTERS
        if fits or most_boxes <= _FEWEST_BOXES:
            return text
        most_boxes = max(_FEWEST_BOXES, most_boxes * 3 // 4)


def escaped(text: str) -> str:
    """Text for a quoted label: characters that could mean something to Mermaid are written as their numbers.

    >>> escaped('layer1.0 "end"]; %% <b>')
    'layer1.0 #34;end#34;#93;#59; #37;#37; #60;b#62;'
    """
    return _UNSAFE.sub(lambda match: f"#{ord(match[0])};", text)


def _text(diagram: Sketch) -> str:
    lines = ["flowchart TB"]
    for part in diagram.parts:
        _add(lines, part, "  ")
    parts = {part.number: part for part in diagram.walk()}
    lines += [_edge(line, parts) for line in diagram.lines]
    styles: dict[str, tuple[str, list[str]]] = {}
    for part in parts.values():
        # The names of classes are ours, never a model's.
        name = f"depth{part.depth}" if part.is_open else f"type_{part.kind}"
        fill, stroke, ink = part.colours()
        styles.setdefault(name, (f"fill:{fill},stroke:{stroke},color:{ink}", []))[1].append(_id(part))
    for name, (style, members) in sorted(styles.items()):
        lines.append(f"  classDef {name} {style}")
        lines.append(f"  class {','.join(members)} {name}")
    return "\n".join([*lines, ""])


def _id(part: Part) -> str:
    return f"{'g' if part.is_open else 'n'}{part.number}"


def _add(lines: list[str], part: Part, indent: str) -> None:
    from torchatlas.render.svg import isolated

    rows = [escaped(isolated(row)) for row in (part.title, part.subtitle) if row]
    if part.is_open:
        label = " · ".join(rows)
        lines.append(f'{indent}subgraph {_id(part)}["{label}"]')
        for inner in part.inner:
            _add(lines, inner, indent + "  ")
        lines.append(indent + "end")
        return
    label = "<br/>".join(rows)
    begin, end = {"terminal": ("([", "])"), "closed": ("[[", "]]")}.get(part.kind, ("[", "]"))
    lines.append(f'{indent}{_id(part)}{begin}"{label}"{end}')


def _edge(line: SketchLine, parts: dict[int, Part]) -> str:
    from torchatlas.render.text_diagram import LineKind

    arrow = {LineKind.TENSOR: "-->", LineKind.AGAIN: "-.->", LineKind.KEPT: "==>"}[line.kind]
    label = f'|"{escaped(line.label)}"|' if line.label else ""
    return f"  {_id(parts[line.source])} {arrow}{label} {_id(parts[line.target])}"

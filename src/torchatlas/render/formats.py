"""Adds picture files and the notebook's views to graphs. Imported with the package; draws only when asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchatlas.graph import Graph
from torchatlas.graph.formats import VIEWS, WRITERS
from torchatlas.sections import Section


@WRITERS.add(".svg")
def write_svg(graph: Graph, path: Path) -> None:
    """A picture that fits 1600 x 1200; `atlas.draw` has the options."""
    from torchatlas.render.picture import draw

    path.write_text(draw(graph).svg, encoding="utf-8")


@WRITERS.add(".png")
def write_png(graph: Graph, path: Path) -> None:
    """A picture of 1600 x 1200 pixels."""
    from torchatlas.render.picture import draw

    path.write_bytes(draw(graph).png())


@VIEWS.add("svg")
def notebook_picture(graph: Graph) -> str:
    """What a notebook shows of a graph as an image."""
    from torchatlas.render.picture import draw

    return draw(graph, width=1200, height=800)._repr_svg_()


@VIEWS.add("html")
def notebook_table(graph: Graph) -> str:
    """What a notebook shows of a graph as a table."""
    from torchatlas.render.notebook import graph_html

    return graph_html(graph)


@VIEWS.add("sections")
def notebook_sections(sections: Iterable[Section]) -> str:
    """What a notebook shows of a report."""
    from torchatlas.render.html import sections_html

    return sections_html(sections)

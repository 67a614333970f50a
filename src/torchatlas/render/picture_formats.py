"""Adds picture files and the notebook's views to graphs. Imported with the package; draws only when asked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchatlas.files import replacing
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


@WRITERS.add(".html", ".htm")
def write_html(
    graph: Any,
    path: Path,
    *,
    title: str = "",
    overlay: Any = None,
    findings: Any = None,
    partition: Any = None,
    stages: Any = None,
    backward: Any = None,
    device: Any = None,
) -> None:
    """A page of the viewer: of a graph with what is laid over it, or of both graphs of a comparison."""
    from torchatlas.render.viewer.content import page_of, viewed

    data = page_of(
        viewed(graph),
        title=title,
        overlay=overlay,
        findings=findings,
        partition=partition,
        stages=stages,
        backward=backward,
        device=device,
    )
    with replacing(path) as file:
        file.write(data)


@VIEWS.add("markdown")
def markdown_of(comparison: Any, **options: Any) -> str:
    """A comparison for a pull request; `options` are those of `comparison_markdown`."""
    from torchatlas.render.markdown import comparison_markdown

    return comparison_markdown(comparison, **options)


@VIEWS.add("browser")
def show_in_browser(graph: Graph, **options: Any) -> Path:
    """Opens the viewer; `options` are those of `torchatlas.view`."""
    from torchatlas.render.viewer.browser import view

    return view(graph, **options)


@WRITERS.add(".pdf")
def write_pdf(graph: Graph, path: Path) -> None:
    """The same picture, with its texts as text."""
    from torchatlas.render.picture import draw

    path.write_bytes(draw(graph).pdf())


@VIEWS.add("svg")
def notebook_picture(graph: Graph) -> str:
    """What a notebook shows of a graph as an image."""
    from torchatlas.render.viewer.notebook import notebook_picture

    return notebook_picture(graph)


@VIEWS.add("html")
def notebook_page(graph: Graph) -> str:
    """What a notebook shows of a graph: the viewer."""
    from torchatlas.render.viewer.notebook import notebook_forms

    return notebook_forms(graph)["text/html"]


@VIEWS.add("notebook")
def notebook_forms(graph: Graph) -> dict[str, str]:
    """What a notebook shows of a graph, by media type."""
    from torchatlas.render.viewer.notebook import notebook_forms

    return notebook_forms(graph)


@VIEWS.add("sections")
def notebook_sections(sections: Iterable[Section]) -> str:
    """What a notebook shows of a report."""
    from torchatlas.render.report_html import sections_html

    return sections_html(sections)

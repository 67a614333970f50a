"""Graph -> what a notebook shows of it: the viewer in a frame of its own, over a still picture.

A frame with `srcdoc` is part of the notebook: nothing is served, and it is kept in the file. The frame may run scripts
but is a stranger to the notebook's page: it sees neither its cookies nor its kernel. Where frames are taken out
(notebooks that are not trusted, GitHub), the picture below it stays.
"""

from __future__ import annotations

from html import escape

from torchatlas.errors import FileFormatError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.render.graph_html import graph_html
from torchatlas.render.viewer.content import Viewed, graph_name, page_of, still
from torchatlas.render.viewer.html_page import image_source, short
from torchatlas.units import format_bytes

MOST_BYTES = 3_000_000  # of a page inside a notebook: every open of the notebook reads it
MOST_NODES = 100_000  # a page of more is larger than that: it need not be made to know
_WIDTH, _HEIGHT = 1200, 800  # of the still picture
_FRAME_HEIGHT = 600
_SANDBOX = "allow-scripts allow-downloads allow-popups"


def notebook_forms(graph: Graph) -> dict[str, str]:
    """The forms of a graph by media type. A notebook takes the first that it can show."""
    picture = notebook_picture(graph)
    return {"text/html": notebook_html(graph, picture), "image/svg+xml": picture}


def notebook_picture(graph: Graph) -> str:
    """The still picture, as SVG."""
    return still(graph, "", _WIDTH, _HEIGHT)


def notebook_html(graph: Graph, picture: str) -> str:
    """The viewer, or where there is none the picture and why; below, folded, the tables."""
    name = graph_name(graph)
    page, why_not = _page(graph, name)
    image = f'<img src="{image_source(picture)}" alt="{escape(short(name))}" style="{_image_style(bool(page))}">'
    tables = f"<details><summary>tables</summary>{graph_html(graph)}</details>"
    if not page:
        return f"<div>{image}<div>{escape(clean(why_not))}</div>{tables}</div>"
    frame = (
        f'<iframe srcdoc="{escape(page)}" sandbox="{_SANDBOX}" title="{escape(short(name))}" width="100%" '
        f'height="{_FRAME_HEIGHT}" style="position:absolute;left:0;top:0;width:100%;height:100%;border:0;'
        'background:Canvas"></iframe>'
    )
    box = f"position:relative;height:{_FRAME_HEIGHT}px;overflow:hidden;border:1px solid rgba(127,127,127,.4)"
    return f'<div><div style="{box}">{image}{frame}</div>{tables}</div>'


def _page(graph: Graph, name: str) -> tuple[str, str]:
    """The page for the frame, or why there is none."""
    large = "too many for the viewer inside a notebook: graph.show() opens it."
    if len(graph) > MOST_NODES:
        return "", f"{len(graph):,} nodes are {large}"
    try:
        page = page_of([Viewed(graph, name)]).decode()
    except FileFormatError as error:  # a graph that cannot be written is shown as far as it can be
        return "", f"There is no viewer of this graph: {error}"
    return (page, "") if len(page) <= MOST_BYTES else ("", f"{format_bytes(len(page))} are {large}")


def _image_style(covered: bool) -> str:
    return "width:100%;height:100%;object-fit:contain" if covered else f"max-width:100%;max-height:{_HEIGHT}px"

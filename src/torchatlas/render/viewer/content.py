"""Whatever people have in hand (graphs, files, recordings, reports, comparisons) -> the pages that show it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import as_path, suffix_of
from torchatlas.render.viewer.document import document
from torchatlas.render.viewer.html_page import PageDocument, page

EXTRAS = ("overlay", "findings", "partition", "stages", "backward", "device")  # what can be shown with a graph
# Reports of ours that are themselves laid over their graph, by class. Reports have no common base, and importing them
# here would import torch.
_OVERLAYS = {
    "BackwardRecording": "backward",
    "BackwardRun": "backward",
    "PartitionReport": "partition",
    "PipelinePlan": "stages",
}


@dataclass(frozen=True)
class Viewed:
    """One graph to be shown, its name, and what is laid over it."""

    graph: Graph
    name: str
    extras: Mapping[str, Any] = field(default_factory=dict)


def viewed(item: Any, name: str = "") -> list[Viewed]:
    """The graphs of one thing: usually one; two of a comparison, or of the file of one."""
    if isinstance(item, Graph):
        return [Viewed(item, name or graph_name(item))]
    if isinstance(item, (str, os.PathLike)):
        return _of_file(as_path(item))
    ours = type(item).__module__.partition(".")[0] == "torchatlas"
    kind = type(item).__name__
    if ours and kind == "Comparison":
        return [Viewed(item.before.graph, "before"), Viewed(item.after.graph, "after")]
    if ours and kind == "Run":
        return [item._viewed()]
    graph = getattr(item, "graph", None) if ours else None
    if not isinstance(graph, Graph):
        raise InvalidInputError(_refusal(item, ours))
    extras = {_OVERLAYS[kind]: item} if kind in _OVERLAYS else {}
    return [Viewed(graph, name or graph_name(graph), extras)]


def _of_file(path: Path) -> list[Viewed]:
    if suffix_of(path) in (".html", ".htm"):
        from torchatlas.export.html import load_pages

        pages = load_pages(path)
        return [Viewed(graph, path.name if len(pages) == 1 else name) for name, graph in pages]
    return [Viewed(Graph.load(path), path.name)]


def _refusal(item: Any, ours: bool) -> str:
    name = type(item).__name__
    if any(base.__module__.startswith("torch.nn") for base in type(item).__mro__):
        return f"view takes what a {name} did, not the {name} itself: atlas.view(atlas.capture(model, x))."
    if ours and name in ("Visit", "Findings", "Finding"):
        return f"a {name} holds no graph: lay it over one with atlas.view(graph, findings=findings)."
    if ours:
        return f"a {name} holds no graph; view takes a graph, its file, a recording, or a report of a graph."
    return f"view takes a graph, its file, a recording, or a report of a graph, not {name}."


def graph_name(graph: Graph) -> str:
    """The class of the model, or what kind of graph it is."""
    model = next((module.type for module in graph.tables.modules if not module.path), "")
    return model or ("autograd graph" if graph.source == "autograd" else "computation")


def page_of(shown: Sequence[Viewed], *, title: str = "", **extras: Any) -> bytes:
    """The page of one graph, or of two compared side by side; without any, an empty viewer.

    `extras` are shown with the first graph.
    """
    documents = documents_of(shown, title=title, **extras)
    if not shown:
        return page([], title=title or "torchatlas")
    title = title or title_of(shown)
    return page(documents, title=title, still=still(shown[0].graph, title))


def title_of(shown: Sequence[Viewed]) -> str:
    """The title of a page with these graphs."""
    return " and ".join(item.name for item in shown)


def documents_of(shown: Sequence[Viewed], *, title: str = "", **extras: Any) -> list[PageDocument]:
    """The documents that a page holds. Of two graphs the first document says how they are aligned."""
    extras = _checked(title, extras)
    if len(shown) > 2:
        raise InvalidInputError(f"{len(shown)} graphs do not fit side by side: view one, or compare two.")
    documents = []
    for number, item in enumerate(shown):
        more = {**item.extras, **extras} if number == 0 else dict(item.extras)
        if number == 0 and len(shown) == 2:
            more["other"] = shown[1].graph
        data = document(item.graph, title=(title if len(shown) == 1 else "") or item.name, **more)
        documents.append(PageDocument(item.name, data))
    return documents


def still(graph: Graph, title: str, width: int = 1600, height: int = 1200) -> str:
    """The picture that is shown where scripts are off."""
    from torchatlas.render.picture import draw

    return draw(graph, title=title if title != graph_name(graph) else "", width=width, height=height).svg


def _checked(title: Any, extras: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(title, str):
        raise InvalidInputError(f"title={title!r} is no text; pass a string.")
    for name in extras:
        if name not in EXTRAS:
            raise TypeError(f"page_of() takes no {name}=; there are {', '.join(EXTRAS)}")
    return {name: item for name, item in extras.items() if item is not None}

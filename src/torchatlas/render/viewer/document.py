"""Graph -> the document of a viewer page: the bytes of an .atlas file with more members under viewer/.

docs/format.md lists the members. The page holds them compressed; whoever reads .atlas files reads them, too.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec
import numpy as np

from torchatlas.errors import FileFormatError, InvalidInputError
from torchatlas.export.archive import Parts, array_parts, graph_members, write_members
from torchatlas.export.file_checks import check_savable
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph
from torchatlas.registry import did_you_mean
from torchatlas.render.viewer.sections import SECTIONS
from torchatlas.render.viewer.subject import Subject

_LAST = "info"  # says what the other sections left out
_OF_VALUES = ("replay", "program")  # metadata that describes recorded values, which a page does not hold


def document(graph: Graph, **extras: Any) -> bytes:
    """The document of a graph. Equal arguments give equal bytes.

    The keyword arguments are those that sections take, such as title= and overlay=.
    """
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"a viewer page shows a Graph, not {type(graph).__name__}: see atlas.capture.")
    _check(extras)
    check_savable(graph, "the page")
    with collection_paused():
        subject = Subject(graph, extras)
        viewer_members: dict[str, Parts] = {}
        for name in [*(name for name in SECTIONS if name != _LAST), _LAST]:
            for member, content in SECTIONS[name].members(subject).items():
                viewer_members[f"viewer/{member}"] = _parts(member, content)
        members = graph_members(_without_values(graph), "the page") | dict(sorted(viewer_members.items()))
        file = io.BytesIO()
        write_members(file, members)
    return file.getvalue()


def _check(extras: dict[str, Any]) -> None:
    known = sorted({name for section in SECTIONS for name in SECTIONS[section].takes})
    for name in extras:
        if name not in known:
            hint = did_you_mean(name, known) or "."
            raise InvalidInputError(f"a viewer page takes no {name}={hint} Known: {', '.join(known)}.")


def _without_values(graph: Graph) -> Graph:
    """The graph as the page holds it, without recorded values: they may be larger than everything else."""
    metadata = {key: item for key, item in graph.metadata.items() if key not in _OF_VALUES}
    return Graph(
        graph.columns,
        graph.tables,
        source=graph.source,
        notes=graph.notes,
        metadata=metadata,
        timing=graph.timing,
    )


def _parts(member: str, content: Any) -> Parts:
    if isinstance(content, np.ndarray):
        return array_parts(content)
    try:
        return (msgspec.json.encode(content, order="deterministic"),)
    except UnicodeEncodeError as error:
        raise FileFormatError(f"viewer/{member}: not written: a text is not Unicode ({error}).") from error

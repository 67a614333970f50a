"""Graph -> `.speedscope.json`: a flame graph of phases, modules and ops for speedscope.

Ops are placed end to end, so that the total is the time of the ops and a module has the time of the ops in it. With
`gaps` they keep their measured places: the time between ops, with the cost of recording, then counts for the modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchatlas.escapes import encodable
from torchatlas.export.ranks import ranks_of
from torchatlas.export.timeline import OpTimeline, Span, spans, timeline
from torchatlas.files import replacing
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph
from torchatlas.graph.formats import RANK_WRITERS, WRITERS

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"  # its name; nothing is asked of it


@WRITERS.add(".speedscope.json")
def save_flames(graph: Graph, path: Path, *, gaps: bool = False) -> None:
    """A profile for each thread. `gaps` leaves ops where they were measured."""
    save_rank_flames([graph], path, gaps=gaps)


@RANK_WRITERS.add(".speedscope.json")
def save_rank_flames(graphs: Sequence[Graph], path: Path, *, gaps: bool = False) -> None:
    """A profile for each thread of each rank."""
    with collection_paused():
        document = _document(graphs, path, gaps)
    with replacing(path) as file:
        file.write(msgspec.json.encode(document))


def _document(graphs: Sequence[Graph], path: Path, gaps: bool) -> dict[str, Any]:
    frames = _Frames()
    profiles: list[dict[str, Any]] = []
    for number, graph in zip(ranks_of(graphs), graphs, strict=True):
        line = timeline(graph, gaps=gaps)
        rank = f"rank {number}, " if len(graphs) > 1 else ""
        several = len(set(graph.columns["node_iteration"][line.nodes].tolist())) > 1
        shown = [span for span in spans(line) if several or span.kind != "step"]  # one step would be the whole
        for lane in range(len(line.lanes)):
            profiles.append(_profile(line, [span for span in shown if span.lane == lane], rank, frames))
    return {
        "$schema": _SCHEMA,
        "exporter": "torchatlas",
        "name": encodable(path.name),
        "activeProfileIndex": 0,
        "shared": {"frames": frames.rows},
        "profiles": profiles,
    }


class _Frames:
    """The table of frames: a name, and for an op the line of the program."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._number: dict[tuple[Any, ...], int] = {}

    def number(self, graph: Graph, span: Span) -> int:
        source = int(graph.columns["node_source"][span.node]) if span.node >= 0 else -1
        line = graph.tables.sources[source] if source >= 0 else None
        key = (span.name, None if line is None else (line.file, line.line))
        if key not in self._number:
            self._number[key] = len(self.rows)
            source_line = {} if line is None else {"file": encodable(line.file), "line": line.line}
            self.rows.append({"name": span.name, **source_line})
        return self._number[key]


def _profile(line: OpTimeline, mine: Sequence[Span], rank: str, frames: _Frames) -> dict[str, Any]:
    """The spans of one thread as frames that open and close."""
    events: list[dict[str, Any]] = []
    stack: list[tuple[Span, int]] = []

    def close(depth: int) -> None:
        while stack and stack[-1][0].depth >= depth:
            span, frame = stack.pop()
            events.append({"type": "C", "at": span.end_ns, "frame": frame})

    for span in mine:
        close(span.depth)
        stack.append((span, frames.number(line.graph, span)))
        events.append({"type": "O", "at": span.start_ns, "frame": stack[-1][1]})
    close(0)
    measured = line.graph.measured()
    assert measured is not None
    return {
        "type": "evented",
        "name": f"{rank}{line.lanes[mine[0].lane]}: {measured.what}; each op stands {line.placed}",
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": max(span.end_ns for span in mine),
        "events": events,
    }

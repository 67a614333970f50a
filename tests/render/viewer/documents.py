"""Reads the document of a viewer page as the viewer does."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.render.viewer.document import document


@dataclass(frozen=True)
class Box:
    """A child of a group at its place."""

    kind: str
    start: int
    stop: int
    repeat: int
    template: int
    title: str
    subtitle: str
    heading: str
    type: str
    name: str
    level: int
    flags: int
    depth: int
    open: bool


class Document:
    """The members below viewer/, decoded."""

    def __init__(self, data: bytes) -> None:
        self.members: dict[str, Any] = {}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self.names = archive.namelist()
            for name in self.names:
                if name.startswith("viewer/"):
                    content = archive.read(name)
                    decoded = json.loads(content) if name.endswith(".json") else np.load(io.BytesIO(content))
                    self.members[name.removeprefix("viewer/")] = decoded

    def __getitem__(self, name: str) -> Any:
        return self.members[name]

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def array(self, name: str) -> Array:
        found: Array = self.members[f"{name}.npy"]
        return found

    def boxes(self, *, only_open: bool = False) -> Iterator[Box]:
        """All boxes, outer ones first; or those that are drawn while the groups of the still picture are open."""
        outline = self["outline.json"]
        opened = {tuple(row) for row in outline["open"]}
        yield from self._boxes(outline, opened, outline["root"], 0, 1, only_open)

    def _boxes(
        self, outline: dict[str, Any], opened: set[Any], template: int, base: int, depth: int, only_open: bool
    ) -> Iterator[Box]:
        texts, classes = [*outline["texts"], ""], [*outline["classes"], ""]
        for kind, start, stop, repeat, inner, title, subtitle, heading, type, *rest in outline["templates"][template]:
            name, level, flags = rest
            words = texts[title], texts[subtitle], texts[heading], classes[type], texts[name]
            is_open = (base + start, base + stop, depth) in opened
            yield Box(kind, base + start, base + stop, repeat, inner, *words, level, flags, depth, is_open)
            if inner >= 0 and (is_open or not only_open):
                yield from self._boxes(outline, opened, inner, base + start, depth + 1, only_open)


def read(graph: Graph, **extras: Any) -> Document:
    return Document(document(graph, **extras))

"""Outline -> outline.json: the groups of the still picture, equal ones once, and which of them are open.

A template lists the children of a group: the groups whose children are all equal, but for where they begin, share one.
Every group is looked into, so that two groups share a template only if they do look alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.layout.folding import hands_on
from torchatlas.render.layout.outline import Item
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

DIFFERENT_ROUNDS, HANDS_ON, MARKER = 1, 2, 4  # flags of a child
Child = tuple[str, int, int, int, int, int, int, int, int, int, int, int]


@section("outline")
def outline(subject: Subject) -> Members:
    """The templates of all groups."""
    return {"outline.json": _Templates(subject).content()}


class _Templates:
    def __init__(self, subject: Subject) -> None:
        self.subject, self.outline, self.words = subject, subject.outline, subject.words
        self._level = call_levels(subject.graph.columns["call_parent"])
        self._texts: dict[str, int] = {}
        self._classes: dict[str, int] = {}
        self._templates: dict[tuple[Child, ...], int] = {}

    def content(self) -> dict[str, Any]:
        last = self._template(self.outline.root)  # made after all others: in the file it is the first
        opened = [(item.start, item.stop, item.depth) for item in self.subject.opened]
        return {
            "texts": list(self._texts),
            "classes": list(self._classes),
            "open": opened,
            "templates": [
                [(*child[:4], child[4] if child[4] < 0 else last - child[4], *child[5:]) for child in children]
                for children in reversed(self._templates)
            ],
            "root": 0,
        }

    def _template(self, group: Item) -> int:
        """The number of the template of a group. Those of the groups inside come first."""
        children = tuple(self._child(group, child) for child in self.outline.children(group))
        return self._templates.setdefault(children, len(self._templates))

    def _child(self, group: Item, item: Item) -> Child:
        repeats = item.repeat > 1 and hands_on(self.outline.tree, item)
        flags = DIFFERENT_ROUNDS * item.alike_only | HANDS_ON * repeats
        return (
            item.kind,
            item.start - group.start,
            item.stop - group.start,
            item.repeat,
            -1 if item.is_leaf else self._template(item),
            self._text(self.words.title(item)),
            self._text(self.words.subtitle(item)),
            -1 if item.is_leaf else self._text(self.words.heading(item)),
            self._classes.setdefault(item.type, len(self._classes)) if item.type else -1,
            self._text(item.name),
            int(self._level[item.call]) if item.call >= 0 else -1,
            flags | MARKER * self.outline.is_marker(item),
        )

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts)) if text else -1


def call_levels(parent: Array) -> Array:
    """For every module call, in how many others it lies."""
    level, above = np.zeros(len(parent), np.int64), parent.astype(np.int64)
    while (above >= 0).any():
        level += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    return level

"""What a viewer page is about: the graph, its still picture, and what the caller adds. Sections are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torchatlas.analysis.node_work import Counts, count
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.columns import Array
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.importance import Importance
from torchatlas.render.layout.open_groups import opening_order
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.tree import Tree
from torchatlas.render.picture import draw

# A page of more nodes leaves out what takes a text for every node: such texts would be most of the file.
MOST_NODES = 200_000


class Subject:
    """Figures that several sections need are computed once."""

    def __init__(self, graph: Graph, extras: Mapping[str, Any]) -> None:
        self.graph, self.extras = graph, extras
        self.left_out: list[str] = []  # sentences: what the page does not hold, and how to see it
        self.notes: list[str] = []  # what a reader must know before trusting a number, beside the graph's own

    @cached_property
    def _picture(self) -> tuple[Outline, frozenset[Item]]:
        picture = draw(self.graph)
        return picture.outline, picture.fit.opened

    @property
    def outline(self) -> Outline:
        """The groups of the still picture: the viewer shows the same."""
        return self._picture[0]

    @cached_property
    def opened(self) -> list[Item]:
        """The groups that are open in the still picture, in the order in which pages open them."""
        opened, groups = self._picture[1], list[Item]()
        for step in opening_order(self.outline, Importance(self.outline, self.words)):
            if len(groups) == len(opened):
                break
            groups += [group for group in step if group in opened]
        return groups

    @property
    def tree(self) -> Tree:
        return self.outline.tree

    @cached_property
    def words(self) -> BoxWords:
        return BoxWords(self.outline)

    @cached_property
    def counts(self) -> Counts | None:
        """The work of every node; None where there is nothing to count it from."""
        if self.graph.source == "autograd":  # it has no arguments to cost
            return None
        try:
            return count(self.graph)
        except (AnalysisError, InvalidInputError) as error:
            self.notes.append(f"FLOPs and bytes moved are unknown: {error}")
            return None

    @cached_property
    def arithmetic(self) -> Array | None:
        """All arithmetic of every node, multiply-adds twice; -1 where it is unknown."""
        if (counts := self.counts) is None:
            return None
        arithmetic: Array = (counts.flops.clip(0) + counts.elementwise_flops.clip(0)).astype("f8")
        arithmetic[(counts.flops < 0) & (counts.elementwise_flops < 0)] = -1
        return arithmetic

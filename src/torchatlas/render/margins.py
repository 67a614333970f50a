"""How a picture is to look -> what title, legend and footer take of its page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from torchatlas.graph import NodeKind, OperationType, Phase
from torchatlas.graph.columns import KINDS, Array
from torchatlas.operations import type_of_box
from torchatlas.render.fonts import text_width
from torchatlas.render.layout.outline import Outline
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.tree import Tree
from torchatlas.render.sheet import Sheet
from torchatlas.render.theme import Theme

_WORDS, _TITLE = 28 / 3, 40 / 3  # sizes of texts around a picture on paper, in pixels: 7 and 10 points
# What a critical path may be the heaviest chain by, in the words of the legend.
_WEIGHTS = {"time": "time", "flops": "all arithmetic", "bytes": "bytes moved", "count": "number of ops"}
_KNOWN: WeakKeyDictionary[Tree, list[OperationType]] = WeakKeyDictionary()  # types in a tree


@dataclass(frozen=True)
class Look:
    """How a picture is to look."""

    theme: Theme
    title: str | None  # "": the class of the model; None: no heading
    legend: bool
    footer: bool
    color_by: str
    critical_path: bool | str
    sheet: Sheet
    phases: tuple[Phase, ...] | None  # those that are drawn; None: all

    @property
    def width(self) -> int:
        return self.sheet.width

    @property
    def height(self) -> int:
        return self.sheet.height

    @property
    def text(self) -> float:
        """The smallest text, in pixels."""
        return max(self.sheet.font_size, 6.0)


@dataclass(frozen=True)
class Margins:
    """What title, legend and footer take of a page, in pixels."""

    side: float
    top: float
    bottom: float
    title: float  # text sizes
    words: float
    rows: int

    @classmethod
    def of(cls, look: Look, outline: Outline) -> Margins:
        """Small pages get small margins, those for papers the smallest: a paper has its own. The legend gets rows for
        every type of op there is."""
        part = min(1.0, look.width / 900, look.height / 600)
        words = max(look.text, 8 + 4.5 * part)
        side, title = 8 + 20 * part, max(look.text, 10 + 15 * part)
        if look.sheet.on_paper:
            side, words, title, part = 3.0, max(look.text, _WORDS), max(look.text, _TITLE), 0.0
        rows = 0
        if look.legend:
            names = [*(kind.value for kind in types_in(outline)), "closed group", "×n identical repeats"]
            names += [path_words(look, outline.tree)] if look.critical_path else []
            rows = row_count([entry_width(name, words) for name in names], look.width - 2 * side)
            rows = rows if look.color_by == "type" else 1
        top = side if look.title is None else title * 1.55 + 14 * part + 12
        return cls(side, top, 0.0, title, words, 0).with_rows(rows, look.footer)

    def with_rows(self, rows: int, footer: bool) -> Margins:
        """The margins with a legend of so many rows, and a line below it or none."""
        words = (1.9 if footer else 0.0) * self.words + rows * self.words * 1.75
        return replace(self, rows=rows, bottom=words + 18 if words else self.side)

    def room(self, look: Look) -> tuple[float, float]:
        """What is left for boxes and lines: width and height."""
        return look.width - 2 * self.side, look.height - self.top - self.bottom


def types_in(outline: Outline) -> list[OperationType]:
    """The types that boxes may have. Every attempt to fit a tree to a page asks for them, so they are cached."""
    tree = outline.tree
    if tree not in _KNOWN:
        _KNOWN[tree] = find_types(tree)
    return _KNOWN[tree]


def find_types(tree: Tree) -> list[OperationType]:
    """The types of ops, and of boxes that stand for a module."""
    columns, tables = tree.graph.columns, tree.graph.tables
    operations, is_op = tables.operations, columns["node_kind"] == KINDS.index(NodeKind.OP)
    names, ran = [*tree.classes, ""], dict[int, list[str]]()  # class -> what its modules ran, in all phases
    of_module = np.append(tree.module_class, len(tree.classes))  # the last: of no call
    classed = of_module[np.append(columns["call_module"], -1)][columns["node_call"]]
    for operation, kind in pairs(columns["node_operation"][is_op], classed[is_op]):
        ran.setdefault(kind, []).append(operations[operation].name)
    nodes, present = tree.node[is_op[tree.node]], set[OperationType]()
    for operation, kind in pairs(columns["node_operation"][nodes], classed[nodes]):
        own = operations[operation].type
        present |= {own, type_of_box(own, names[kind], ran[kind])}
    return [kind for kind in OperationType if kind in present]


def pairs(ones: Array, others: Array) -> Iterable[tuple[int, int]]:
    """The distinct pairs. There may be 12,000 numbers on each side: a table of all possible pairs may be huge."""
    many = int(others.max(initial=0)) + 1
    codes = ones.astype(np.int64) * many + others
    possible = (int(ones.max(initial=0)) + 1) * many
    if possible < len(codes):  # as mostly: counting is quicker than sorting
        codes = np.flatnonzero(np.bincount(codes))
    else:
        codes = np.unique(codes)
    return zip((codes // many).tolist(), (codes % many).tolist(), strict=True)


def entry_width(name: str, size: float) -> float:
    """What an entry of the legend takes."""
    return swatch_width(size) + 5 + text_width(name, size) + 16


def swatch_width(size: float) -> float:
    """The width of a sample of a colour beside words of a size."""
    return min(STYLE.swatch, 1.2 * size)


def row_count(widths: list[float], room: float) -> int:
    """How many rows the entries of a legend take, given their widths."""
    rows, at = 1, 0.0
    for width in widths:
        if at and at + width > room:
            rows, at = rows + 1, 0.0
        at += width
    return rows


def path_weight(look: Look, tree: Tree) -> str:
    """What the critical path is weighed by: time if any drawn op was timed, else FLOPs."""
    if isinstance(look.critical_path, str):
        return look.critical_path
    return "time" if (tree.graph.columns["node_time_ns"][tree.node] >= 0).any() else "flops"


def path_words(look: Look, tree: Tree) -> str:
    """What the legend calls the critical path."""
    weight = path_weight(look, tree)
    return f"critical path by {_WEIGHTS.get(weight, weight)}"

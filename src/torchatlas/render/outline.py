"""Graph -> the module tree as rows of figures, repeated siblings folded: what the text and the notebook view share.

A row holds what ran in its module and below it; a folded row sums all the modules it stands for, and so do the rows
below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from torchatlas.graph import Graph, Scope

_NUMBERED = re.compile(r"(.*?)(\d+)$")


@dataclass(frozen=True, slots=True)
class Row:
    """One module, or several alike. None is unknown; `untimed` operations make `time_ns` an "at least"."""

    depth: int
    label: str
    type: str
    count: int  # how many modules it stands for
    calls: int
    operations: int
    time_ns: int | None
    untimed: int
    parameters: int
    allocated_bytes: int | None
    unsized: int = 0  # allocations whose size is unknown
    hidden: int = 0  # modules below it that have no row of their own


@dataclass(frozen=True, slots=True)
class _Branch:
    """Modules that are alike, with what is below them."""

    scopes: Sequence[Scope]
    children: Sequence[_Branch]
    above: tuple[str, str] = ("", "")  # the containers of the first and last that have no row of their own


def headline(graph: Graph) -> str:
    """What the graph is of, in one line."""
    article = "an" if graph.source[:1] in "aeiou" else "a"
    name = graph.scopes[""].type
    return f"Graph of {article} {graph.source}" + (f": {name}" if name else "")


def outline(graph: Graph, *, depth: int | None = None, limit: int = 60) -> list[Row]:
    """The rows, root first. Without `depth`, as deep as `limit` rows allow; longer lists end in a row for the rest."""
    root = _branch([graph.scopes[""]])
    deepest = _height(root)
    if depth is None:
        depth = next((d for d in range(deepest, 1, -1) if _size(root, d) <= limit), 1)
    return list(_rows(root, 0, min(max(depth, 0), deepest), limit, _Allocated(graph)))


def _branch(scopes: Sequence[Scope]) -> _Branch:
    """Merge modules that are alike: their children at the same place are merged too."""
    merged = [[scope.children[place] for scope in scopes] for place in range(len(scopes[0].children))]
    branches = []
    for _, run in groupby(_with_runs(merged), key=lambda item: item[0]):
        branches.append(_branch([scope for _, alike in run for scope in alike]))
    idle = not any(scope.calls or scope.own_operations for scope in scopes)
    if idle and len(branches) == 1 and scopes[0].parent is not None:  # a ModuleList: its only part stands for it
        only = branches[0]
        above = (f"{scopes[0].name}.{only.above[0]}", f"{scopes[-1].name}.{only.above[1]}")
        return _Branch(only.scopes, only.children, above)
    return _Branch(scopes, branches)


def _with_runs(merged: list[list[Scope]]) -> Iterator[tuple[int, list[Scope]]]:
    """Each place with the number of its run: numbered neighbours (layers.0, layers.1) that are alike share one."""
    number = -1
    before: list[Scope] | None = None
    for alike in merged:
        if before is None or not _follows(before[0], alike[0]):
            number += 1
        yield number, alike
        before = alike


def _follows(before: Scope, after: Scope) -> bool:
    one, two = _NUMBERED.match(before.name), _NUMBERED.match(after.name)
    if one is None or two is None or one[1] != two[1] or int(two[2]) != int(one[2]) + 1:
        return False
    return _alike(before, after)


def _alike(one: Scope, two: Scope) -> bool:
    """Same type, same counts, same below."""
    return (
        (one.type, one.kind, one.calls, one.operations, one.parameters)
        == (two.type, two.kind, two.calls, two.operations, two.parameters)
        and len(one.children) == len(two.children)
        and all(a.name == b.name and _alike(a, b) for a, b in zip(one.children, two.children, strict=True))
    )


def _height(branch: _Branch) -> int:
    return 1 + max(map(_height, branch.children), default=-1)


def _size(branch: _Branch, depth: int) -> int:
    return 1 + (sum(_size(child, depth - 1) for child in branch.children) if depth else 0)


def _modules(branch: _Branch) -> int:
    return sum(1 for scope in branch.scopes for _ in scope.walk())


def _rows(branch: _Branch, at: int, depth: int, limit: int, allocated: _Allocated) -> Iterator[Row]:
    below = branch.children
    hidden = 0 if depth > at else sum(map(_modules, below))
    yield _row(branch.scopes, at, _label(branch), branch.scopes[0].type, hidden, allocated)
    if depth <= at:
        return
    shown = below if len(below) <= limit else below[: limit - 1]
    for child in shown:
        yield from _rows(child, at + 1, depth, limit, allocated)
    if len(shown) < len(below):
        rest = [scope for child in below[len(shown) :] for scope in child.scopes]
        hidden = sum(map(_modules, below[len(shown) :])) - len(rest)
        yield _row(rest, at + 1, f"… and {len(rest):,} more", "", hidden, allocated)


def _row(scopes: Sequence[Scope], at: int, label: str, kind: str, hidden: int, allocated: _Allocated) -> Row:
    times = [scope.time_ns for scope in scopes if scope.time_ns is not None]
    return Row(
        depth=at,
        label=label,
        type=kind,
        count=len(scopes),
        calls=sum(scope.calls for scope in scopes),
        operations=sum(scope.operations for scope in scopes),
        time_ns=sum(times) if times else None,
        untimed=sum(scope.untimed for scope in scopes),
        parameters=sum(scope.parameters for scope in scopes),
        allocated_bytes=allocated.bytes_in(scopes),
        unsized=allocated.unsized_in(scopes),
        hidden=hidden,
    )


def _label(branch: _Branch) -> str:
    first, last = (above + branch.scopes[end].name for above, end in zip(branch.above, (0, -1), strict=True))
    return (first if first == last else f"{first} .. {last}") or "total"


class _Allocated:
    """Bytes that the operations of each module allocated, itself and below."""

    def __init__(self, graph: Graph) -> None:
        columns, index = graph.columns, graph.index
        self._known = graph.peak_bytes is not None
        self._bytes: dict[str, int] = {}
        self._unsized: dict[str, int] = {}
        if not self._known:
            return
        made = columns["storage_born"] >= 0
        path = index.path_of_call[columns["node_call"][columns["storage_born"][made]]]
        size = columns["storage_bytes"][made]
        total = np.zeros(len(index.paths), np.int64)
        np.add.at(total, path, np.maximum(size, 0))
        unsized = np.bincount(path[size < 0], minlength=len(index.paths))
        own = {name: (int(total[i]), int(unsized[i])) for i, name in enumerate(index.paths)}
        for scope in reversed(list(graph.scopes[""].walk())):
            sums = own.get(scope.path, (0, 0))
            below = [child.path for child in scope.children]
            self._bytes[scope.path] = sums[0] + sum(self._bytes[child] for child in below)
            self._unsized[scope.path] = sums[1] + sum(self._unsized[child] for child in below)

    def bytes_in(self, scopes: Sequence[Scope]) -> int | None:
        return sum(self._bytes[scope.path] for scope in scopes) if self._known else None

    def unsized_in(self, scopes: Sequence[Scope]) -> int:
        return sum(self._unsized.get(scope.path, 0) for scope in scopes)

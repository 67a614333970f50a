"""Names of nodes, the same from run to run; short names of operations, of lines and of what a graph was made from."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from torchatlas.graph.columns import Array, Tables

if TYPE_CHECKING:
    from torchatlas.graph.nouns import SourceLine

# fx writes functions with their Python path, where the last part is the name; dispatcher operators are
# namespace.name.overload, where the middle one is.
_PYTHON_PATHS = ("torch", "_operator", "operator", "builtins", "math", "nn", "")


def short_name(operation: str) -> str:
    """aten.add_.Tensor -> add_, nn.Conv2d -> Conv2d, torch.nn.functional.relu -> relu.

    >>> short_name("aten.add_.Tensor"), short_name("nn.Conv2d"), short_name("AddBackward0")
    ('add_', 'Conv2d', 'AddBackward0')
    """
    parts = operation.split(".")
    if len(parts) >= 3 and parts[0] not in _PYTHON_PATHS:
        return parts[1]
    return parts[-1]


def short_line(source: SourceLine | None) -> str:
    """A line of the program for a table: the name of its file, without folders, and its number."""
    return "" if source is None else f"{source.file.replace(chr(92), '/').rpartition('/')[2]}:{source.line}"


def origin(source: str) -> str:
    """What a graph was made from, after "Graph of".

    >>> origin("run"), origin("export"), origin("autograd")
    ('a run', 'an export', 'autograd')
    """
    return {"run": "a run", "export": "an export", "fx": "a torch.fx module"}.get(source, source)


_ENDS_LIKE_A_COUNTER = re.compile(r"_\d+$")


class NodeNames:
    """The names of nodes: scope, operation or given name, and a counter from the second of its kind on."""

    def __init__(self, columns: dict[str, Array], tables: Tables, paths: list[str], path_of_call: Array) -> None:
        self.columns, self.tables, self.paths, self.path_of_call = columns, tables, paths, path_of_call

    def between(self, start: int, stop: int | None) -> list[str]:
        """The names of the nodes start:stop."""
        (bases, base), prefixes, always = self._bases, self._prefixes, self._always_counted
        paths = self.path_of_call[self.columns["node_call"][start:stop]].tolist()
        rows = zip(paths, base[start:stop].tolist(), self._counters[start:stop].tolist(), strict=True)
        return [
            f"{prefixes[path]}{bases[last]}_{counter}" if counter or always[last] else prefixes[path] + bases[last]
            for path, last, counter in rows
        ]

    @cached_property
    def _bases(self) -> tuple[list[str], Array]:
        """The distinct last parts of names, and which one each node has."""
        columns, number = self.columns, dict[str, int]()
        of_operation = np.array(
            [number.setdefault(short_name(operation.name), len(number)) for operation in self.tables.operations] or [0],
            np.int64,
        )
        base = of_operation[columns["node_operation"]]
        named = np.flatnonzero(columns["node_name"] >= 0)
        for node in named:
            base[node] = number.setdefault(self.tables.names[columns["node_name"][node]], len(number))
        return list(number), base

    @cached_property
    def _counters(self) -> Array:
        """For every node, how many nodes before it have the same scope and base name, joined to one text."""
        bases, base = self._bases
        key = self.path_of_call[self.columns["node_call"]] * len(bases) + base
        if any("." in last for last in bases):  # the input layers.relu, and a relu in the module layers
            pairs, which = np.unique(key, return_inverse=True)
            number: dict[str, int] = {}
            texts = (f"{self.paths[pair // len(bases)]}.{bases[pair % len(bases)]}" for pair in pairs.tolist())
            key = np.array([number.setdefault(text.removeprefix("."), len(number)) for text in texts], np.int64)[which]
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else np.zeros(0, np.int64)
        counters = np.empty(len(key), np.int64)
        counters[order] = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
        return counters

    @cached_property
    def _prefixes(self) -> list[str]:
        return [f"{path}." if path else "" for path in self.paths]

    @cached_property
    def _always_counted(self) -> list[bool]:
        """Which base names end like a counter: an op called foo_1 must not meet the second foo."""
        return [bool(_ENDS_LIKE_A_COUNTER.search(last)) for last in self._bases[0]]

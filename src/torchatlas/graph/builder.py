"""Rows, one by one or all at once -> a Graph: the one writer of a graph's columns and tables, for all front ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES, Array, Layout, Module, Operation, Tables
from torchatlas.graph.graph import Graph
from torchatlas.graph.nouns import EdgeKind, NodeKind, Phase, Role, SourceLine

# unit (node, value, edge ...) -> its fields and their columns. How many inputs and outputs a node has are fields of it.
_FIELDS: dict[str, dict[str, str]] = {}
for _name, (_, _unit) in COLUMNS.items():
    if _unit == "node+1":
        _FIELDS["node"][_name.replace("_ptr", "_count")] = _name
    else:
        _FIELDS.setdefault(_unit, {})[_name.removeprefix(f"{_unit}_")] = _name


class Builder:
    """A graph in the making. Fields that are not given are unknown.

    `fill` takes all rows of a unit (node, input, output, value, storage, edge, call) at once, and `add` one more;
    those that were filled in come first. `storage`, `value`, `call` and `node` add rows in the terms of the nouns.
    """

    def __init__(self, threads: Sequence[str] = ("main",)) -> None:
        self._filled: dict[str, Array] = {}
        self._added: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._units = {
            unit: {field: self._added[name] for field, name in fields.items()} for unit, fields in _FIELDS.items()
        }
        self._threads = list(threads)
        self._tables: dict[str, dict[Any, int]] = {
            name: {} for name in ("operations", "layouts", "arguments", "sources", "modules", "names", "devices")
        }
        self._calls: dict[int, int] = {}  # module -> how often it was called

    def row(self, table: str, item: Any) -> int:
        """The row of an item in a table; equal items share one."""
        rows = self._tables[table]
        return rows.setdefault(item, len(rows))

    def fill(self, unit: str, count: int, **fields: Any) -> None:
        """All rows of a unit: for each field a sequence, or one entry for all."""
        assert fields.keys() <= _FIELDS[unit].keys(), fields
        for field, name in _FIELDS[unit].items():
            entries = np.asarray(fields.get(field, -1), COLUMNS[name][0])
            self._filled[name] = entries if entries.ndim else np.full(count, entries)
            assert len(self._filled[name]) == count, name

    def add(self, unit: str, **fields: Any) -> int:
        """One row; its number, counted from the first that was added."""
        columns = self._units[unit]
        assert fields.keys() <= columns.keys(), fields
        for field, column in columns.items():
            column.append(fields.get(field, -1))
        return len(column) - 1

    def storage(self, size: int, device: str, role: Role, born: int = -1) -> int:
        """Memory. A size of -1 is unknown."""
        return self.add("storage", bytes=size, device=self.row("devices", device), born=born, role=ROLES.index(role))

    def value(
        self,
        layout: Layout,
        role: Role,
        *,
        storage: int = -1,
        producer: int = -1,
        output: int = -1,
        name: str = "",
        version: int = 0,
        view_of: int = -1,
        offset: int = 0,
    ) -> int:
        """One state of a tensor."""
        return self.add(
            "value",
            storage=storage,
            layout=self.row("layouts", layout),
            offset=offset,
            version=version,
            producer=producer,
            output_index=output,
            view_of=view_of,
            role=ROLES.index(role),
            parameter=self.row("names", name) if name else -1,
        )

    def role_of(self, value: int) -> Role:
        return ROLES[int(self._added["value_role"][value])]

    def call(self, path: str, type_name: str, parent: int = -1, kind: str = "module") -> int:
        """A call of a module."""
        module = self.row("modules", Module(path, type_name, kind))
        index = self._calls[module] = self._calls.get(module, -1) + 1
        return self.add("call", module=module, parent=parent, index=index)

    @property
    def next_node(self) -> int:
        """The number that the next node will have."""
        return len(self._added["node_kind"])

    def node(
        self,
        operation: Operation,
        *,
        kind: NodeKind = NodeKind.OP,
        phase: Phase = Phase.FORWARD,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        written: Iterable[int] = (),
        arguments: str = "[[],{}]",
        call: int = -1,
        source: SourceLine | None = None,
        name: str = "",
        sequence_nr: int = -1,
    ) -> int:
        """A node. Its edges follow from the producers of its inputs. `written` are positions in `inputs`."""
        columns, number, marked = self._added, self.next_node, set(written)
        for index, value in enumerate(inputs):
            self.add("input", value=value, written=index in marked)
            producer = columns["value_producer"][value]
            if producer >= 0:
                output = columns["value_output_index"][value]
                data = EDGE_KINDS.index(EdgeKind.DATA)
                ends = {"source": producer, "target": number, "value": value, "kind": data}
                self.add("edge", **ends, output_index=output, input_index=index)
        for value in outputs:
            self.add("output", value=value)
        return self.add(
            "node",
            kind=KINDS.index(kind),
            operation=self.row("operations", operation),
            phase=PHASES.index(phase),
            call=call,
            source=-1 if source is None else self.row("sources", source),
            arguments=self.row("arguments", arguments),
            name=self.row("names", name) if name else -1,
            sequence_nr=sequence_nr,
            iteration=0,
            thread=0,
            input_count=len(inputs),
            output_count=len(outputs),
        )

    def graph(self, source: str, **settings: Any) -> Graph:
        """The finished graph; `settings` are those of Graph."""
        columns = {}
        for name, (dtype, unit) in COLUMNS.items():
            column = np.array(self._added[name], dtype)
            if name in self._filled:
                column = np.concatenate([self._filled[name], column]) if len(column) else self._filled[name]
            if unit == "node+1":  # counts; a node of which none is said has none
                column = np.concatenate([[0], np.cumsum(np.maximum(column, 0))]).astype(dtype)
            columns[name] = column
        tables = Tables(threads=self._threads, **{name: list(rows) for name, rows in self._tables.items()})
        return Graph(columns, tables, source=source, **settings)

"""Nodes, values and calls one after another -> a Graph: for front ends that do not decode a recording."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchatlas.graph.columns import COLUMNS, EDGE_KINDS, KINDS, PHASES, ROLES, Layout, Module, Operation, Tables
from torchatlas.graph.graph import Graph
from torchatlas.graph.nouns import EdgeKind, NodeKind, Phase, Role, SourceLine


class Builder:
    """Rows of a graph in the making. What is not said is unknown."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._columns["input_ptr"], self._columns["output_ptr"] = [0], [0]
        self._tables: dict[str, dict[Any, int]] = {
            name: {} for name in ("operations", "layouts", "arguments", "sources", "modules", "names", "devices")
        }
        self._calls: dict[int, int] = {}  # module -> how often it was called

    def _row(self, table: str, item: Any) -> int:
        rows = self._tables[table]
        return rows.setdefault(item, len(rows))

    def _add(self, unit: str, **entries: Any) -> int:
        for name, (_, counted_in) in COLUMNS.items():
            if counted_in == unit:
                self._columns[name].append(entries.pop(name.removeprefix(f"{unit}_"), -1))
        assert not entries, entries
        return len(self._columns[next(name for name, (_, of) in COLUMNS.items() if of == unit)]) - 1

    def storage(self, size: int, device: str, role: Role, born: int = -1) -> int:
        """Memory. A size of -1 is unknown."""
        return self._add("storage", bytes=size, device=self._row("devices", device), born=born, role=ROLES.index(role))

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
        return self._add(
            "value",
            storage=storage,
            layout=self._row("layouts", layout),
            offset=offset,
            version=version,
            producer=producer,
            output_index=output,
            view_of=view_of,
            role=ROLES.index(role),
            parameter=self._row("names", name) if name else -1,
        )

    def role_of(self, value: int) -> Role:
        return ROLES[int(self._columns["value_role"][value])]

    def call(self, path: str, type_name: str, parent: int = -1, kind: str = "module") -> int:
        """A call of a module."""
        module = self._row("modules", Module(path, type_name, kind))
        index = self._calls[module] = self._calls.get(module, -1) + 1
        return self._add("call", module=module, parent=parent, index=index)

    @property
    def next_node(self) -> int:
        """The number that the next node will have."""
        return len(self._columns["node_kind"])

    def node(
        self,
        operation: Operation,
        *,
        kind: NodeKind = NodeKind.OP,
        phase: Phase = Phase.FORWARD,
        inputs: Sequence[int] = (),
        outputs: Iterable[int] = (),
        written: Iterable[int] = (),
        arguments: str = "[[],{}]",
        call: int = -1,
        source: SourceLine | None = None,
        name: str = "",
        sequence_nr: int = -1,
    ) -> int:
        """A node. Its edges follow from the producers of its inputs. `written` are places in `inputs`."""
        columns, number, marked = self._columns, self.next_node, set(written)
        for index, value in enumerate(inputs):
            columns["input_value"].append(value)
            columns["input_written"].append(index in marked)
            producer = columns["value_producer"][value]
            if producer >= 0:
                output = columns["value_output_index"][value]
                data = EDGE_KINDS.index(EdgeKind.DATA)
                ends = {"source": producer, "target": number, "value": value, "kind": data}
                self._add("edge", **ends, output_index=output, input_index=index)
        columns["output_value"] += outputs
        columns["input_ptr"].append(len(columns["input_value"]))
        columns["output_ptr"].append(len(columns["output_value"]))
        return self._add(
            "node",
            kind=KINDS.index(kind),
            operation=self._row("operations", operation),
            phase=PHASES.index(phase),
            call=call,
            source=-1 if source is None else self._row("sources", source),
            arguments=self._row("arguments", arguments),
            name=self._row("names", name) if name else -1,
            sequence_nr=sequence_nr,
            iteration=0,
            thread=0,
        )

    def graph(self, source: str, *, notes: Iterable[str] = (), metadata: dict[str, Any] | None = None) -> Graph:
        """The finished graph."""
        tables = Tables(threads=["main"], **{name: list(rows) for name, rows in self._tables.items()})
        columns = {name: np.array(self._columns[name], dtype) for name, (dtype, _) in COLUMNS.items()}
        return Graph(columns, tables, source=source, notes=notes, metadata=metadata)

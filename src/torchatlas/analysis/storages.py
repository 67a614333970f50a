"""Graph -> one row per storage: its lifetime, size, category, module and the line that made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph, Phase, Role
from torchatlas.graph.columns import PHASES, ROLES, Array

# What memory is for, in the order reports list it, in words. The keys are part of the JSON of a report.
CATEGORIES = {
    "parameters": "parameters",
    "buffers": "buffers",
    "inputs": "inputs",
    "constants": "constants",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "saved_activations": "activations saved for backward",
    "activations": "activations",
    "temporaries": "temporaries",
    "unattributed": "not attributed",  # what the recording counted and no storage explains, see memory.py
}
KEYS = tuple(CATEGORIES)
_OF_ROLE = {
    Role.PARAMETER: "parameters",
    Role.BUFFER: "buffers",
    Role.INPUT: "inputs",
    Role.CONSTANT: "constants",
    Role.GRADIENT: "gradients",
    Role.OPTIMIZER_STATE: "optimizer_state",
    Role.ACTIVATION: "activations",
    Role.TEMPORARY: "temporaries",
}
_BACKWARD = PHASES.index(Phase.BACKWARD)
_RECOMPUTE = PHASES.index(Phase.RECOMPUTE)


@dataclass(frozen=True, eq=False)
class Storages:
    """One row per storage. It counts after every node from `start` to `end`, both included. -1 is none."""

    start: Array
    end: Array
    bytes: Array  # the most it ever held; 0 where unknown
    unknown: Array  # whether the size is unknown
    category: Array  # position in KEYS
    module: Array  # position in graph.index.paths: whose it is
    line: Array  # position in graph.tables.sources: the line that made it
    value: Array  # the first tensor on it
    name: Array  # position in graph.tables.names: its name in the model
    last_read: Array  # the last node that takes it
    read_in_backward: Array  # whether an op of backward, or of a recomputation, takes it
    resizes: Array  # rows of storage, node from which it counts, bytes before and after; in order

    def alive_at(self, node: int) -> Array:
        """Which of them are alive right after a node."""
        return (self.start <= node) & (node <= self.end)

    def bytes_at(self, node: int) -> Array:
        """The size of each right after a node, whether it is alive then or not."""
        sizes = self._first_bytes()
        storage, _, before, after = self.resizes[self.resizes[:, 1] <= node].T
        np.add.at(sizes, storage, after - before)
        return sizes

    def _first_bytes(self) -> Array:
        """The bytes of each storage before any resizing."""
        sizes = self.bytes.copy()
        storage, _, before, _ = self.resizes[::-1].T
        sizes[storage] = before
        return sizes

    def cost_of_holding(self, clock: Array) -> Array:
        """Bytes times how long, by a clock that says when each node was done."""
        ends = clock[self.end]
        costs = self._first_bytes() * (ends - clock[self.start]).astype(np.float64)  # whole numbers would overflow
        storage, node, before, after = self.resizes[self.resizes[:, 1] < len(clock)].T
        np.add.at(costs, storage, (after - before) * np.maximum(ends[storage] - clock[node], 0.0))
        return costs

    def timeline(self, nodes: int) -> Array:
        """Bytes alive after each node (columns) of each category (rows)."""
        change = np.zeros(len(KEYS) * (nodes + 1), np.int64)
        row = self.category * (nodes + 1)
        storage, node, before, after = self.resizes.T
        np.add.at(change, row + self.start, self._first_bytes())
        np.add.at(change, row[storage] + node, after - before)
        np.subtract.at(change, row + self.end + 1, self.bytes_at(nodes))
        return np.cumsum(change.reshape(len(KEYS), -1)[:, :-1], axis=1)


def peak_of(graph: Graph) -> int:
    """The peak in bytes. Where memory was not followed, an error says what to do."""
    if graph.peak_bytes is not None:
        return graph.peak_bytes
    if not len(graph):
        raise AnalysisError("Nothing was recorded in this graph, so nothing filled memory.")
    if graph.source != "run":
        raise AnalysisError(
            f"A graph of source {graph.source!r} says what would run, not when memory is taken and freed. "
            "Record a run: atlas.capture(model, *args), with fake=True to allocate nothing."
        )
    raise AnalysisError("Memory was not followed in this graph. Record it again with track_memory=True, the default.")


def storages_of(graph: Graph) -> Storages:
    """Every storage of a graph that has at least one node."""
    columns = graph.columns
    born, died, size = columns["storage_born"], columns["storage_died"], columns["storage_bytes"]
    value, name = _first_values(graph)
    first_read, last_read, read_in_backward = _reads(graph)
    # What came from outside and was freed meanwhile, a batch of a loop, was not there from the beginning: the
    # recording counts it from its first use. What has a name in the model was there.
    came_and_went = (born < 0) & (died >= 0) & (first_read >= 0) & (name < 0)
    start = np.where(came_and_went, first_read, np.maximum(born, 0))
    end = np.maximum(np.where(died < 0, len(graph) - 1, died), start)
    return Storages(
        start=start,
        end=end,
        bytes=np.maximum(size, 0),
        unknown=size < 0,
        category=_category(graph, start, end),
        module=_module(graph, name),
        line=np.append(columns["node_source"], -1)[born],
        value=value,
        name=name,
        last_read=last_read,
        read_in_backward=read_in_backward,
        resizes=_resizes(graph),
    )


def _resizes(graph: Graph) -> Array:
    """The resizes of storages that the recording noted. Rows that cannot be right, in a foreign file, are left out."""
    rows, limits = graph.metadata.get("resized", ()), (len(graph.storages) - 1, len(graph), 2**62, 2**62)

    def sound(row: Any) -> bool:
        whole = isinstance(row, list) and len(row) == 4 and all(isinstance(number, int) for number in row)
        return whole and all(0 <= number <= limit for number, limit in zip(row, limits, strict=True))

    return np.array([row for row in rows if sound(row)], np.int64).reshape(-1, 4)


def _first_values(graph: Graph) -> tuple[Array, Array]:
    """Per storage the first tensor on it, and the name of the first that has one."""
    columns, count = graph.columns, len(graph.columns["storage_bytes"])
    storage, parameter = columns["value_storage"], columns["value_parameter"]
    value, name = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    held = np.flatnonzero(storage >= 0)[::-1]  # backwards: of several assignments the last stays, so the first tensor
    value[storage[held]] = held
    held = held[parameter[held] >= 0]
    name[storage[held]] = parameter[held]
    return value, name


def _reads(graph: Graph) -> tuple[Array, Array, Array]:
    """Per storage the first and the last node that takes it, and whether one of backward does."""
    columns, count = graph.columns, len(graph.columns["storage_bytes"])
    node, storage = graph.index.node_of_input, columns["value_storage"][columns["input_value"]]
    node, storage = node[storage >= 0], storage[storage >= 0]
    first, last = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    last[storage] = node
    first[storage[::-1]] = node[::-1]
    in_backward = np.zeros(count, bool)
    in_backward[storage[np.isin(columns["node_phase"][node], (_BACKWARD, _RECOMPUTE))]] = True
    return first, last, in_backward


def _category(graph: Graph, start: Array, end: Array) -> Array:
    """The category follows from the role, but for activations: those alive during backward were saved for it.

    Where backward was recorded the others are temporaries; where it was not, the two cannot be told apart.
    """
    of_role = np.array([KEYS.index(_OF_ROLE[role]) for role in ROLES])
    category: Array = of_role[graph.columns["storage_role"]]
    backward = np.flatnonzero(graph.columns["node_phase"] == _BACKWARD)
    if not len(backward):
        return category
    following = np.append(backward, len(graph))[np.searchsorted(backward, start, side="right")]
    activation = category == KEYS.index("activations")
    saved, passing = KEYS.index("saved_activations"), KEYS.index("temporaries")
    category[activation] = np.where(following <= end, saved, passing)[activation]
    return category


def _module(graph: Graph, name: Array) -> Array:
    """Named tensors, their gradients and states belong to the module of that name; others to where they were made."""
    columns = graph.columns
    of_name = np.zeros(len(graph.tables.names) + 1, np.int64)
    for one in np.unique(name[name >= 0]).tolist():
        of_name[one] = graph.index.path_of_parameter(graph.tables.names[one])
    born = columns["storage_born"]
    made_in = np.append(graph.index.path_of_call[columns["node_call"]], 0)[born]
    return np.where(name >= 0, of_name[name], made_in)

"""Graph -> its totals: nodes by kind, phase and module, times and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from torchatlas.graph import Graph, GraphNode, NodeKind, Phase, Role
from torchatlas.graph.columns import KINDS, PHASES, ROLES, Array
from torchatlas.graph.timing import Measured
from torchatlas.units import format_bytes, format_ns


class MemoryUsage(dict[str, Any]):
    """Bytes by purpose; a dictionary that prints readably. None is unknown, which is not zero.

    `current` were alive after the last node and `peak` the most after any; `parameters` are all of the model's, tied
    ones once; `gradients` and `activations` the most that were alive at one time. `at_least` says that some tensors
    did not tell their size, or that only module calls were recorded: there may be more.

    >>> print(MemoryUsage(current=2048, peak=4096, parameters=1024, gradients=0, activations=None))
    current 2.00 KiB, peak 4.00 KiB, parameters 1.00 KiB, gradients 0 B, activations unknown
    >>> print(MemoryUsage(current=None, peak=None))
    unknown (memory was not tracked)
    """

    def __str__(self) -> str:
        sizes = {name: size for name, size in self.items() if name != "at_least"}
        if all(size is None for size in sizes.values()):
            return "unknown (memory was not tracked)"
        at_least = "at least " if self.get("at_least") else ""
        return ", ".join(f"{name} {at_least if size else ''}{format_bytes(size)}" for name, size in sizes.items())


class RunTimes(dict[str, Any]):
    """What a run took; a dictionary that prints readably. None is unknown, which is not zero.

    `operations` is the sum of all operations, `eager` the wall time of the program alone, `recorded` that of a run
    while it was recorded, which takes longer. Each has `ns`, the `runs` whose median that is, and their `spread_ns`.
    `warmup` runs came first. `at_least` says that some operations were not timed.

    >>> print(RunTimes(operations={"ns": 19_900_000, "runs": 1}, recorded={"ns": 61_000_000, "runs": 1}))
    19.9 ms in operations, 61.0 ms while recording (one run)
    >>> print(RunTimes(operations={"ns": 19_900_000, "runs": 10, "spread_ns": 640_000}))
    19.9 ms in operations (median of 10 ± 3.2 %)
    >>> print(RunTimes())
    unknown (nothing was timed)
    """

    def __str__(self) -> str:
        words = {"operations": "in operations", "eager": "eager", "recorded": "while recording"}
        times = [(Measured(**self[name]), said) for name, said in words.items() if self.get(name)]
        if not times:
            return "unknown (nothing was timed)"
        sign = "at least " if self.get("at_least") else ""
        if all(time.runs == 1 for time, _ in times):
            return sign + ", ".join(f"{format_ns(time.ns)} {said}" for time, said in times) + " (one run)"
        return sign + ", ".join(f"{format_ns(time.ns)} {said} ({time.what})" for time, said in times)


def run_times(graph: Graph) -> RunTimes:
    """What a run of this graph took."""
    timing, untimed = graph.timing, graph.columns["node_time_ns"][operations_mask(graph)] < 0
    if timing is None:
        return RunTimes(operations=None, eager=None, recorded=None, warmup=0, at_least=False)
    times = {"operations": graph.measured(), "eager": timing.eager, "recorded": timing.recorded}
    dicts = {name: None if time is None else time.to_dict() for name, time in times.items()}
    return RunTimes(dicts, warmup=timing.warmup, at_least=bool(untimed.any()))


def summarize(graph: Graph) -> dict[str, Any]:
    """The figures as one dictionary that JSON can hold; what is unknown is None.

    `total_nodes` counts inputs and outputs too, `total_operations` does not. `operation_time` sums the times of the
    operations, in seconds; `untimed_operations` says how many are missing in it, and `times` whether it is one run or
    a median. `operations_by_module` counts in every module what ran in it and below it; the empty path is the whole
    program.
    """
    is_op = operations_mask(graph)
    time_ns = graph.columns["node_time_ns"][is_op]
    timed = time_ns >= 0
    return {
        "total_nodes": len(graph),
        "total_operations": int(is_op.sum()),
        "total_edges": len(graph.edges),
        "data_edges": graph.data_edges,
        "operation_time": int(time_ns[timed].sum()) / 1e9 if timed.any() else None,
        "untimed_operations": int((~timed).sum()),
        "times": run_times(graph),
        "memory_usage": memory_usage(graph),
        "operation_types": _by_operation_type(graph, is_op),
        "module_types": _most_first(Counter(one.type for one in graph.tables.modules if one.kind == "module")),
        "operations_by_phase": operations_by_phase(graph),
        "operations_by_module": {
            path: scope.operations for path, scope in graph.scopes.items() if scope.operations or scope.calls
        },
        "parameters": graph.scopes[""].parameters,
        "notes": list(graph.notes),
    }


def operations_mask(graph: Graph) -> Array:
    """Which nodes are operations, not inputs or outputs."""
    mask: Array = graph.columns["node_kind"] == KINDS.index(NodeKind.OP)
    return mask


def operations_by_phase(graph: Graph) -> dict[str, int]:
    """How many operations each phase has; phases without any are left out."""
    counts = np.bincount(graph.columns["node_phase"][operations_mask(graph)], minlength=len(PHASES))
    return {str(phase): int(count) for phase, count in zip(PHASES, counts, strict=True) if count}


def time_by_phase(graph: Graph) -> dict[Phase, int | None]:
    """Nanoseconds in the operations of each phase; None where none was timed."""
    is_op, times = operations_mask(graph), {}
    phase, time_ns = graph.columns["node_phase"][is_op], graph.columns["node_time_ns"][is_op]
    for position in np.unique(phase):
        known = time_ns[(phase == position) & (time_ns >= 0)]
        times[PHASES[position]] = int(known.sum()) if len(known) else None
    return times


def slowest(graph: Graph, count: int = 10) -> list[GraphNode]:
    """The operations that took longest, slowest first. Empty when nothing was timed."""
    time_ns = np.where(operations_mask(graph), graph.columns["node_time_ns"], -1)
    timed = int((time_ns >= 0).sum())
    order = np.argsort(-time_ns, kind="stable")[: min(count, timed)]
    return [graph.nodes[int(node)] for node in order]


def memory_usage(graph: Graph) -> MemoryUsage:
    """Where the bytes are."""
    names = ("current", "peak", "parameters", "gradients", "activations")
    if graph.peak_bytes is None:
        return MemoryUsage(dict.fromkeys(names), at_least=False)
    last = int(graph.columns["node_memory_bytes"][-1])
    module_level = module_calls_only(graph)
    amounts = (
        last if last >= 0 else None,
        graph.peak_bytes,
        _bytes(graph, Role.PARAMETER).sum(),
        None if module_level else _most_at_once(graph, Role.GRADIENT),  # backward is one node there: nothing is seen
        _most_at_once(graph, Role.ACTIVATION),
    )
    sizes = {name: None if amount is None else int(amount) for name, amount in zip(names, amounts, strict=True)}
    return MemoryUsage(sizes, at_least=module_level or bool((graph.columns["storage_bytes"] < 0).any()))


def operations_of(graph: Graph) -> Iterator[tuple[str, list[GraphNode]]]:
    """Every module path with the operations that ran in it, not below it; each operation is in exactly one."""
    index = graph.index
    is_op = np.flatnonzero(operations_mask(graph))
    path = index.path_of_call[graph.columns["node_call"][is_op]]
    order = np.argsort(path, kind="stable")
    nodes, starts = is_op[order], np.append(0, np.cumsum(np.bincount(path, minlength=len(index.paths))))
    for position, name in enumerate(index.paths):
        yield name, [graph.nodes[int(node)] for node in nodes[starts[position] : starts[position + 1]]]


def module_calls_only(graph: Graph) -> bool:
    """Whether a run was recorded by module calls (track_tensor_ops=False): no dispatcher operator is named so."""
    names = (operation.name for operation in graph.tables.operations)
    return graph.source == "run" and any(name.startswith(("nn.", "torch.")) for name in names)


def _bytes(graph: Graph, role: Role) -> Array:
    sizes: Array = np.maximum(graph.columns["storage_bytes"], 0)
    return np.where(graph.columns["storage_role"] == ROLES.index(role), sizes, 0)


def _most_at_once(graph: Graph, role: Role) -> int:
    """The most bytes of this role alive after any node."""
    sizes, change = _bytes(graph, role), np.zeros(len(graph) + 1, np.int64)
    born, died = graph.columns["storage_born"], graph.columns["storage_died"]
    np.add.at(change, np.maximum(born, 0), sizes)
    ends = died >= 0
    np.subtract.at(change, died[ends] + 1, sizes[ends])
    return int(np.cumsum(change)[:-1].max(initial=0))


def _by_operation_type(graph: Graph, is_op: Array) -> dict[str, int]:
    rows, counts = graph.columns["node_operation"][is_op], Counter[str]()
    for operation, count in zip(graph.tables.operations, np.bincount(rows).tolist(), strict=False):
        counts[str(operation.type)] += count
    return _most_first(counts)


def _most_first(counts: Counter[str]) -> dict[str, int]:
    """What was counted at least once, most first and by name among equals."""
    return dict(sorted((+counts).items(), key=lambda item: (-item[1], item[0])))

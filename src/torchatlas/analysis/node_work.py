"""Graph -> the work of every node, as columns. Equal calls are computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchatlas.analysis.autograd_bytes import only_for_backward
from torchatlas.analysis.symbolic_sizes import RAGGED, sizes_of
from torchatlas.analysis.totals import operations_mask
from torchatlas.errors import AnalysisError
from torchatlas.graph import Graph
from torchatlas.graph.arguments import Call, decode
from torchatlas.graph.columns import Array
from torchatlas.operations.formulas import formula_for
from torchatlas.operations.work import OpCall, Operand, Work


@dataclass(frozen=True, eq=False)
class Counts:
    """One number per node; -1 where it is unknown. Inputs and outputs of the program take no work."""

    macs: Array
    elementwise_flops: Array
    bytes_read: Array
    bytes_written: Array
    parallelism: Array
    saved_bytes: Array  # of the bytes written, those that only backward needs
    is_op: Array  # whether the node is an operation at all
    uncosted: dict[str, int]  # operations without a formula, and how often they were called
    sizes: dict[str, int]  # what symbolic sizes were taken to be
    operands: list[Operand]  # per layout of the graph's table

    @property
    def flops(self) -> Array:
        """Two per multiply-add; -1 where unknown."""
        return np.where(self.macs < 0, -1, 2 * self.macs)

    @property
    def bytes(self) -> Array:
        """Read and written."""
        return np.where(self.bytes_read < 0, -1, self.bytes_read + self.bytes_written)


def count(graph: Graph, sizes: Mapping[str, int] | None = None) -> Counts:
    """The work of every node. `sizes` replaces symbolic sizes, which else are those of the traced example."""
    chosen = sizes_of(graph, sizes or {})
    operands = [Operand.of(layout, {**chosen, RAGGED: 0}) for layout in graph.tables.layouts]
    ragged = np.array([RAGGED in layout.shape for layout in graph.tables.layouts], bool)
    any_ragged = bool(ragged.any())
    is_op = operations_mask(graph)
    nodes = np.flatnonzero(is_op)
    fresh, alone = _written(graph)
    first, group = _alike(graph, nodes, fresh, alone)
    work = np.full((len(first), 5), -1, np.int64)
    uncosted, times = dict[str, int](), np.bincount(group, minlength=len(first))
    formulas = [formula_for(operation) for operation in graph.tables.operations]
    for number, node in enumerate(nodes[first].tolist()):
        operation = int(graph.columns["node_operation"][node])
        known = formulas[operation]
        if known is None or (any_ragged and _takes(graph, node, ragged)):
            name = graph.tables.operations[operation].name
            uncosted[name] = uncosted.get(name, 0) + int(times[number])
        else:
            try:
                call = _call(graph, node, operands, fresh, alone)
                work[number] = _row(known(call), call)
            except Exception as error:
                raise AnalysisError(
                    f"The cost formula {known.__module__}.{known.__qualname__} failed on node "
                    f"{graph.nodes[node].name!r}, {graph.nodes[node].operation}: {type(error).__name__}: {error}"
                ) from error
    rows = np.zeros((len(graph), 5), np.int64)
    rows[nodes] = work[group]
    macs, elementwise_flops, read, written, parallelism = rows.T
    saved = _saved(graph, operands, fresh, written)
    return Counts(macs, elementwise_flops, read, written, parallelism, saved, is_op, uncosted, chosen, operands)


def _saved(graph: Graph, operands: Sequence[Operand], fresh: Array, written: Array) -> Array:
    """Per node the bytes of results that only backward needs; -1 where what it writes is unknown."""
    columns = graph.columns
    value, node = columns["output_value"], graph.index.node_of_output
    chosen = fresh & (value >= 0) & np.append(only_for_backward(graph), False)[value]
    size = np.array([one.bytes for one in operands] or [0], np.int64)[columns["value_layout"][value[chosen]]]
    saved = np.bincount(node[chosen], size, minlength=len(graph)).astype(np.int64)
    return np.where(written < 0, -1, np.minimum(saved, written))


def _takes(graph: Graph, node: int, marked: Array) -> bool:
    """Whether a node takes or makes a tensor of a marked layout."""
    made = graph.index.outputs(node)
    return bool(marked[graph.columns["value_layout"][[*graph.index.inputs(node), *made[made >= 0]]]].any())


def _call(graph: Graph, node: int, operands: Sequence[Operand], fresh: Array, alone: Array) -> OpCall:
    columns, index = graph.columns, graph.index
    layout, text = columns["value_layout"], int(columns["node_arguments"][node])
    taken, made = index.inputs(node), index.outputs(node)
    new = fresh[columns["output_ptr"][node] : columns["output_ptr"][node + 1]]
    wrote = alone[columns["input_ptr"][node] : columns["input_ptr"][node + 1]]
    return OpCall(
        graph.tables.operations[int(columns["node_operation"][node])],
        decode(graph.tables.arguments[text]) if text >= 0 else Call(),
        [operands[one] for one in layout[taken]],
        [operands[one] for one in layout[made[made >= 0]]],
        [operands[one] for one in (*layout[made[new & (made >= 0)]], *layout[taken[wrote]])],
    )


def _alike(graph: Graph, nodes: Array, fresh: Array, alone: Array) -> tuple[Array, Array]:
    """Group equal calls: the position of the first of each group, and the group of each op.

    Equal are ops with equal operation, arguments and, slot by slot, layouts: all that their work can depend on.
    """
    columns = graph.columns
    layout = np.append(columns["value_layout"], -1) + 1  # value -1, a result that was not made, has layout 0
    texts = len(graph.tables.arguments) + 1
    code = columns["node_operation"][nodes].astype(np.int64) * texts + columns["node_arguments"][nodes] + 1
    code = np.unique(code, return_inverse=True)[1]
    used = len(code)
    for side, flag in (("input", alone), ("output", fresh)):
        begin, end = columns[f"{side}_ptr"][nodes], columns[f"{side}_ptr"][nodes + 1]
        slots = layout[columns[f"{side}_value"]].astype(np.int64) * 2 + flag
        several, at = np.flatnonzero(end > begin), 0
        while len(several):
            both = code[several] * (2 * len(graph.tables.layouts) + 4) + slots[begin[several] + at]
            code[several] = used + np.unique(both, return_inverse=True)[1]  # small again, so that the product fits
            used += len(several)
            at += 1
            several = several[end[several] - begin[several] > at]
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    return first, group


def _written(graph: Graph) -> tuple[Array, Array]:
    """Which outputs lie in memory that the op wrote (not views), and which inputs it wrote without returning them.

    An op in place returns the tensor it wrote: that is one write, not two.
    """
    columns = graph.columns
    storage, storages = np.append(columns["value_storage"], -1), len(columns["storage_bytes"]) + 1
    taken, made = graph.index.node_of_input * storages, graph.index.node_of_output * storages
    taken, made = taken + storage[columns["input_value"]], made + storage[columns["output_value"]]
    wrote = columns["input_written"].astype(bool)
    fresh = ~_among(made, taken) | _among(made, taken[wrote])
    alone = wrote & ~_among(taken, made)
    return fresh, alone


def _among(keys: Array, pool: Array) -> Array:
    """Which keys are in the pool; np.isin takes ten times as long on numbers that are almost in order."""
    ordered = np.append(np.sort(pool), np.iinfo(np.int64).max)
    is_among: Array = ordered[np.searchsorted(ordered, keys)] == keys
    return is_among


def _row(work: Work, call: OpCall) -> tuple[int, ...]:
    read = sum(one.bytes for one in call.reads) if work.bytes_read is None else work.bytes_read
    wrote = sum(one.bytes for one in call.writes) if work.bytes_written is None else work.bytes_written
    results = sum(one.numel for one in call.writes) if work.parallelism is None else work.parallelism
    return work.macs, work.elementwise_flops, read, wrote, results

"""Graph -> a tree of groups over leaves, as arrays: what is drawn as a box, in which call, joined by which tensors.

Computed once per graph and never changed. Everything is an array, so that a graph of 100,000 ops becomes a tree in a
few hundredths of a second; outline.py makes objects of the few groups that are looked at.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from torchatlas.graph import Graph
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role
from torchatlas.operations import UNINITIALIZED

LANES = ("forward", "backward", "optimizer", "other")
_LANE_OF_PHASE = {
    Phase.FORWARD: 0,
    Phase.BACKWARD: 1,
    Phase.RECOMPUTE: 1,
    Phase.OPTIMIZER: 2,
    Phase.OTHER: 3,
}
_DEEPEST = 60  # module calls nested deeper than this are drawn at this depth


@dataclass(frozen=True, eq=False)
class Tree:
    """Leaves in drawing order; every group is an interval of them. Group 0 is everything. -1 means none."""

    graph: Graph
    node: Array  # leaf -> graph node
    leaf_hash: Array  # equal for leaves that look and are called the same
    leaf_of_node: Array  # graph node -> the leaf whose box, or whose lines, stand for it
    is_leaf: Array  # graph node -> whether it has a box of its own
    lanes: tuple[int, ...]  # the lanes that hold ops, in order of time, when there are several
    start: Array  # group -> its first leaf
    stop: Array
    parent: Array
    depth: Array
    call: Array  # group -> module call
    lane: Array  # group -> which lane it is, for a group that is a lane
    group_hash: Array  # equal for groups with the same structure, shapes and inner wiring
    alike: Array  # equal for groups of one class with the same ops and inner wiring, whatever the shapes
    kept_source: Array  # leaves whose tensors another lane takes: activations kept for backward, gradients for a step
    kept_output: Array  # and which of their tensors
    kept_target: Array
    source: Array  # edge -> leaf; edges in order of their targets, then of the targets' inputs
    output: Array  # edge -> which output of the source
    target: Array
    value: Array  # edge -> the value that arrives, as the target sees it
    first_edge: Array  # leaf -> the first of the edges that enter it; one more at the end
    by_source: Array  # the edges in order of their sources
    first_read: Array  # leaf -> the first of the edges in that order that leave it; one more at the end


def build(graph: Graph, phases: Collection[Phase] | None = None) -> Tree:
    """The tree of a graph, or of some phases. Views disappear into lines, bookkeeping of buffers into nothing."""
    columns = graph.columns
    count = len(graph)
    kind = columns["node_kind"]
    is_op = kind == KINDS.index(NodeKind.OP)
    data = columns["edge_kind"] == EDGE_KINDS.index(EdgeKind.DATA)
    names = ("source", "target", "output_index", "input_index", "value")
    edges = _Edges(*(columns[f"edge_{name}"][data].astype(np.int64) for name in names))
    passing = _passing(graph, is_op, edges)
    came_from, came_out = _origins(count, passing, edges)
    is_leaf = ~passing & ~_bookkeeping(graph, is_op, edges)
    lane = np.array([_LANE_OF_PHASE[phase] for phase in PHASES], np.int64)[columns["node_phase"]]
    lane += len(LANES) * columns["node_iteration"].astype(np.int64).clip(0)
    wanted = is_op if phases is None else is_op & np.isin(columns["node_phase"], [PHASES.index(one) for one in phases])
    is_leaf &= wanted | ~is_op
    used = np.unique(lane[is_leaf & is_op])
    if len(used) < 2:
        lane = np.zeros_like(lane)
    if phases is not None:
        is_leaf &= is_op | ~_of_others(is_op, wanted, lane, *_ends(edges, passing, came_from))
    order = np.flatnonzero(is_leaf)
    groups = _Groups(graph, order, lane, is_op, len(used) > 1)
    order = groups.order
    leaf_of_node = np.full(count, -1, np.int64)
    leaf_of_node[order] = np.arange(len(order))
    origin = np.where(is_leaf, np.arange(count), came_from)
    stands_for = np.where(origin >= 0, leaf_of_node[origin], -1)
    drawn = is_leaf[edges.target] & (stands_for[edges.source] >= 0)
    source = stands_for[edges.source[drawn]]
    through = ~is_leaf[edges.source[drawn]]
    output = np.where(through, came_out[edges.source[drawn]], edges.output[drawn]).clip(0)
    target, index, value = leaf_of_node[edges.target[drawn]], edges.index[drawn], edges.value[drawn]
    crosses = _crossing(lane[order], is_op[order], source, target)
    kept_source, kept_output, kept_target = source[crosses], output[crosses], target[crosses]
    by_target = np.arange(len(target))
    if (np.diff(target * (int(index.max(initial=0)) + 1) + index) <= 0).any():  # else they are in order, as recorded
        by_target = np.lexsort((output, source, index, target))
    by_target = by_target[~crosses[by_target]]
    source, output, target, value = source[by_target], output[by_target], target[by_target], value[by_target]
    leaf_hash = _leaf_hashes(graph, order)
    operation = digests(row.name for row in graph.tables.operations)[columns["node_operation"]]
    group_hash, alike = _group_hashes(graph, groups, leaf_hash, operation[order], source, output, target)
    by_source = np.argsort(source, kind="stable")
    return Tree(
        graph,
        order,
        leaf_hash,
        stands_for,
        is_leaf,
        tuple(used.tolist()) if len(used) > 1 else (),
        groups.start,
        groups.stop,
        groups.parent,
        groups.depth,
        groups.call,
        groups.lane,
        group_hash,
        alike,
        kept_source,
        kept_output,
        kept_target,
        source,
        output,
        target,
        value,
        _firsts(target, len(order)),
        by_source,
        _firsts(source, len(order)),
    )


def _firsts(ends: Array, count: int) -> Array:
    """For every leaf where its edges begin among all in order of leaves; one more at the end."""
    return np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=count))])


@dataclass
class _Edges:
    source: Array
    target: Array
    output: Array
    index: Array
    value: Array


def _passing(graph: Graph, is_op: Array, edges: _Edges) -> Array:
    """Nodes that hand on what they get: views. Not the last one of a module that does nothing else, such as Flatten.

    Nor one whose data comes from several nodes, as after a write to a part of a tensor: a line has one beginning.
    """
    columns, count = graph.columns, len(graph)
    views = np.array([operation.type == OperationType.VIEW for operation in graph.tables.operations] or [False])
    passing: Array = is_op & views[columns["node_operation"]]
    incoming = np.bincount(edges.target, minlength=count)
    passing &= incoming <= 1
    calls = columns["node_call"]
    if len(columns["call_module"]) and graph.source != "autograd":
        forward = columns["node_phase"] == PHASES.index(Phase.FORWARD)
        busy = np.zeros(len(columns["call_module"]), bool)
        busy[calls[is_op & ~passing & (calls >= 0)]] = True
        parents = columns["call_parent"]
        idle_last = np.full(len(busy), -1, np.int64)
        mine = np.flatnonzero(passing & (calls >= 0) & forward)
        idle_last[calls[mine]] = mine  # the last one wins
        inner = np.zeros(len(busy), bool)  # calls with calls inside are busy with those
        inner[parents[parents >= 0]] = True
        keep = idle_last[~busy & ~inner & (idle_last >= 0)]
        passing[keep] = False
    return passing


def _origins(count: int, passing: Array, edges: _Edges) -> tuple[Array, Array]:
    """For every passing node, the node and output whose tensor it hands on; -1 for one from outside."""
    origin, output = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    into = passing[edges.target]
    origin[edges.target[into]] = edges.source[into]
    output[edges.target[into]] = edges.output[into]
    while True:  # each round halves what is left of the longest chain
        again = (origin >= 0) & passing[origin]
        if not again.any():
            return origin, output
        output[again] = output[origin[again]]
        origin[again] = origin[origin[again]]


def _ends(edges: _Edges, passing: Array, came_from: Array) -> tuple[Array, Array]:
    """The two ends of all edges, and of those that arrive through views also where they come from."""
    through = passing[edges.source] & (came_from[edges.source] >= 0)
    far = came_from[edges.source[through]]
    return np.concatenate([edges.source, far]), np.concatenate([edges.target, edges.target[through]])


def _of_others(is_op: Array, wanted: Array, lane: Array, source: Array, target: Array) -> Array:
    """Inputs and outputs of ops that are not drawn, and of no others: what is drawn has no line to them.

    One that no op reads or makes is nobody's: it stays.
    """
    joined = ~_crossing(lane, is_op, source, target)
    found: Array = _near(is_op, is_op, source, target) & ~_near(is_op, wanted, source[joined], target[joined])
    return found


def _near(is_op: Array, seed: Array, source: Array, target: Array) -> Array:
    """The inputs and outputs that an edge joins to one of some ops, directly or by way of other inputs and outputs."""
    marked = ~is_op[source] | ~is_op[target]  # the others tell nothing of inputs and outputs
    one, other = (np.concatenate(pair) for pair in ((source[marked], target[marked]), (target[marked], source[marked])))
    found = seed.copy()
    while True:  # an input that is returned as it is has the output's neighbours: a few rounds at most
        more = other[found[one] & ~is_op[other] & ~found[other]]
        if not len(more):
            return found & ~is_op
        found[more] = True


def _crossing(lane: Array, is_op: Array, source: Array, target: Array) -> Array:
    """Edges from one lane to another. What the program is given belongs to forward lanes, what it returns to all."""
    given = ~is_op[source] & (lane[target] % len(LANES) == 0)
    found: Array = (lane[source] != lane[target]) & ~given & is_op[target]
    return found


def _bookkeeping(graph: Graph, is_op: Array, edges: _Edges) -> Array:
    """Ops that only count calls in a buffer, or make room that nothing reads: batch norm does, and dropout for a mask
    that an op with a box of its own writes there."""
    columns, count = graph.columns, len(graph)
    taken = np.diff(columns["input_ptr"])
    node = np.repeat(np.arange(count), taken)
    strangers = columns["value_role"][columns["input_value"]] != ROLES.index(Role.BUFFER)
    reads_else = np.zeros(count, bool)
    reads_else[node[strangers]] = True
    writes = np.zeros(count, bool)
    writes[node[columns["input_written"] > 0]] = True
    unread = np.bincount(edges.source, minlength=count) == 0
    makes_room = np.array([row.name in UNINITIALIZED for row in graph.tables.operations] or [False])
    found: Array = is_op & (
        (~reads_else & (writes | (unread & (taken == 0)))) | (unread & makes_room[columns["node_operation"]])
    )
    return found


class _Groups:
    """Module calls, and the lanes above them, as intervals of leaves."""

    def __init__(self, graph: Graph, leaves: Array, lane: Array, is_op: Array, lanes: bool) -> None:
        columns = graph.columns
        calls = len(columns["call_module"])
        ancestors = _ancestors(columns["call_parent"].astype(np.int64))
        call = columns["node_call"].astype(np.int64)
        levels: list[Array] = []  # per depth, for every leaf, the number of its group or -1
        if lanes:  # what is returned lies in its lane, what is given before all of them
            given = columns["node_kind"] == KINDS.index(NodeKind.INPUT)
            levels.append(np.where(given, -1, lane)[leaves])
        for at_depth in ancestors:
            inside = np.where(call >= 0, at_depth[call], -1)
            levels.append(np.where((inside >= 0) & is_op, lane * calls + inside, -1)[leaves])
        while levels and not (levels[-1] >= 0).any():
            levels.pop()
        self.order = leaves
        if not all(_contiguous(level) for level in levels):
            first = [_first_times(level, leaves) for level in levels]
            into = np.lexsort([leaves, *reversed(first)])
            levels, self.order = [level[into] for level in levels], leaves[into]
        starts: list[Array] = [np.zeros(1, np.int64)]
        stops: list[Array] = [np.array([len(leaves)])]
        depths: list[Array] = [np.zeros(1, np.int64)]
        numbers: list[Array] = [np.array([-1])]
        for number, level in enumerate(levels, 1):  # none when there are no leaves
            change = np.flatnonzero(np.concatenate([[True], level[1:] != level[:-1]]))
            ends = np.append(change[1:], len(level))
            real = level[change] >= 0
            starts.append(change[real])
            stops.append(ends[real])
            depths.append(np.full(len(starts[-1]), number))
            numbers.append(level[starts[-1]])
        start, stop, depth = np.concatenate(starts), np.concatenate(stops), np.concatenate(depths)
        key = np.concatenate(numbers)
        parent = np.full(len(start), -1, np.int64)
        base = 0
        for above, here in itertools.pairwise(starts):
            mine = slice(base + len(above), base + len(above) + len(here))
            parent[mine] = base + np.searchsorted(above, here, side="right") - 1
            base += len(above)
        preorder = np.lexsort((depth, start))
        place = np.empty(len(start), np.int64)
        place[preorder] = np.arange(len(start))
        self.start, self.stop, self.depth = start[preorder], stop[preorder], depth[preorder]
        self.parent = np.where(parent >= 0, place[parent], -1)[preorder]
        is_lane = (depth == 1) if lanes else np.zeros(len(depth), bool)
        self.lane = np.where(is_lane, key, -1)[preorder]
        self.call = np.where(is_lane | (key < 0), -1, key % max(calls, 1))[preorder]


def _ancestors(parent: Array) -> list[Array]:
    """Per depth, for every call, the call at that depth which it is in or is; -1 for calls above that depth."""
    count = len(parent)
    depth, above = np.zeros(count, np.int64), parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    found, current = [], np.arange(count)
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = depth[current] == level
        found.append(np.where(here, current, -1))
        current = np.where(here & (parent[current] >= 0), parent[current], current)
    return found[::-1][:_DEEPEST]


def _contiguous(level: Array) -> bool:
    """Whether every group is one run of leaves."""
    if not len(level):
        return True
    changes = np.concatenate([[True], level[1:] != level[:-1]])
    seen = np.zeros(int(level.max()) + 2, bool)
    seen[level] = True
    return int((changes & (level >= 0)).sum()) == int(seen[:-1].sum())


def _first_times(level: Array, leaves: Array) -> Array:
    """What to sort by at one depth: when a leaf's group began, or for a leaf without one, itself."""
    first = np.full(int(level.max()) + 2, -1, np.int64)
    first[level[::-1]] = leaves[::-1]  # the earliest is written last
    return np.where(level >= 0, first[level], leaves)


# -- hashes: sums of mixed terms, so that they can be taken over any interval ------------------------------------------

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> Array:
    """splitmix64: equal for equal numbers, in any process."""
    with np.errstate(over="ignore"):
        x = (x.astype(np.uint64) + _GOLDEN) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
        mixed: Array = x ^ (x >> np.uint64(32))
        return mixed


def digests(texts: Iterable[str]) -> Array:
    """A stable 64-bit number for every text."""
    known: dict[str, int] = {}
    found = []
    for text in texts:
        number = known.get(text)
        if number is None:
            digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
            number = known[text] = int.from_bytes(digest, "little")
        found.append(number)
    return np.array(found or [0], np.uint64)


def _leaf_hashes(graph: Graph, nodes: Array) -> Array:
    """The operation, its arguments, and the shapes and dtypes of what it takes and makes."""
    columns, tables = graph.columns, graph.tables
    layout = digests(f"{row.shape}{row.dtype}" for row in tables.layouts)[columns["value_layout"]]
    found = digests(operation.name for operation in tables.operations)[columns["node_operation"]]
    with np.errstate(over="ignore"):
        arguments = columns["node_arguments"]
        known = digests(tables.arguments)
        found = _mix(found) + np.where(arguments >= 0, known[arguments], np.uint64(0))
        for name, weight in (("input", np.uint64(3)), ("output", np.uint64(5))):
            ptr = columns[f"{name}_ptr"]
            place = np.arange(len(columns[f"{name}_value"])) - np.repeat(ptr[:-1], np.diff(ptr))
            terms = _mix(layout[columns[f"{name}_value"]] * weight + place.astype(np.uint64))
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
            found = found + (sums[ptr[1:]] - sums[ptr[:-1]])
        return _mix(found)[nodes]


def _group_hashes(
    graph: Graph, groups: _Groups, leaf_hash: Array, operation: Array, source: Array, output: Array, target: Array
) -> tuple[Array, Array]:
    """What is inside, where, and how it is wired: exactly, and by operations only, whatever the shapes.

    Of lines from outside the first holds where they arrive, the second nothing.
    """
    count = len(leaf_hash)
    exact, alike = (np.zeros(len(groups.start), np.uint64) for _ in range(2))
    own = np.full(len(groups.start), 7, np.uint64)
    called = groups.call >= 0
    types = digests(module.type for module in graph.tables.modules)
    own[called] = types[graph.columns["call_module"][groups.call[called]]]
    places, reach = np.arange(count), target - source
    with np.errstate(over="ignore"):
        wire = reach.astype(np.uint64) * np.uint64(8191) + output.astype(np.uint64) * np.uint64(17)
        for depth in range(int(groups.depth.max()) + 1):
            here = np.flatnonzero(groups.depth == depth)
            start, stop = groups.start[here], groups.stop[here]
            offset = places - _starts(start, stop, count)  # of a leaf in its group
            into = offset[target]
            near = reach <= into
            at = offset.astype(np.uint64) * np.uint64(31)
            into = into.astype(np.uint64)
            lines = _mix(np.where(near, into * np.uint64(131) + wire, into + _GOLDEN))
            first, last = np.searchsorted(target, start), np.searchsorted(target, stop)
            exact[here] = _between(_mix(leaf_hash + at), start, stop) + _between(lines, first, last)
            lines[~near] = 0
            alike[here] = _between(_mix(operation + at), start, stop) + _between(lines, first, last)
        return _mix(exact + own), _mix(alike + own)


def _starts(start: Array, stop: Array, count: int) -> Array:
    """For every leaf the start of its group, among groups side by side; -1 for a leaf in none."""
    found = np.full(count, -1, np.int64)
    lengths = stop - start
    inside = np.repeat(start, lengths)
    found[np.arange(len(inside)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + inside] = inside
    return found


def _between(terms: Array, first: Array, last: Array) -> Array:
    """The sums of terms over intervals."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
    found: Array = sums[last] - sums[first]
    return found

"""Graph -> a tree of groups over leaves, as arrays: what is drawn as a box, in which call, joined by which tensors.

Computed once per graph and never changed. Everything is an array, so that a graph of 100,000 ops becomes a tree in a
few hundredths of a second; outline.py makes objects of the few groups that are looked at.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from torchatlas.graph import Graph
from torchatlas.graph.columns import EDGE_KINDS, KINDS, PHASES, ROLES, Array
from torchatlas.graph.nouns import EdgeKind, NodeKind, OperationType, Phase, Role
from torchatlas.graph.subgraph import members
from torchatlas.operations import UNINITIALIZED

LANES = ("forward", "backward", "optimizer", "other")
_LANE_OF_PHASE = {
    Phase.FORWARD: 0,
    Phase.BACKWARD: 1,
    Phase.RECOMPUTE: 1,
    Phase.OPTIMIZER: 2,
    Phase.OTHER: 3,
}
_HELD = [ROLES.index(Role.PARAMETER), ROLES.index(Role.BUFFER)]
_DEEPEST = 60  # module calls nested deeper than this are drawn at this depth


@dataclass(frozen=True, eq=False)
class Tree:
    """Leaves in drawing order; every group is an interval of them. Group 0 is everything. -1 means none."""

    graph: Graph
    classes: list[str]  # of modules
    module_class: Array  # module -> the number of its class
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
    iteration: Array  # group -> which iteration it is, for a group that is one; lanes lie in these if there are several
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
    source, target, output, index, value = (
        columns[f"edge_{name}"][data] for name in ("source", "target", "output_index", "input_index", "value")
    )
    edges = _Edges(source.astype(np.int64), target.astype(np.int64), output, index, value)
    passing = _passing(graph, is_op, edges)
    came_from, came_out = _origins(count, passing, edges)
    is_leaf = ~passing & ~_bookkeeping(graph, is_op, edges)
    lane = np.array([_LANE_OF_PHASE[phase] for phase in PHASES], np.int64)[columns["node_phase"]]
    iteration = np.maximum(columns["node_iteration"], 0, dtype=np.int64)
    iteration -= _belated(graph, is_op, lane, iteration, edges)
    lane += len(LANES) * iteration
    wanted = (
        is_op if phases is None else is_op & np.isin(columns["node_phase"], [PHASES.index(phase) for phase in phases])
    )
    is_leaf &= wanted | ~is_op
    ran = lane[is_leaf & is_op]
    used = np.unique(ran[np.flatnonzero(np.diff(ran, prepend=-1))])  # lanes come in runs: few are to be sorted
    if len(used) < 2:
        lane = np.zeros_like(lane)
    ends = _ends(edges, passing, came_from)
    inside = np.zeros(count, bool)
    if len(used) > 1:
        inside = _lay_inputs_into_lanes(is_op, lane, *ends)
    if phases is not None:
        is_leaf &= is_op | ~_of_others(is_op, wanted, lane, *ends)
    order = np.flatnonzero(is_leaf)
    groups = _Groups(graph, order, lane, is_op, inside, len(used) > 1)
    order = groups.order
    leaf_of_node = np.full(count, -1, np.int64)
    leaf_of_node[order] = np.arange(len(order))
    origin = np.where(is_leaf, np.arange(count), came_from)
    stands_for = np.where(origin >= 0, leaf_of_node[origin], -1)
    drawn = np.flatnonzero(is_leaf[edges.target] & (stands_for[edges.source] >= 0))
    come, index, value = edges.source[drawn], edges.index[drawn], edges.value[drawn].astype(np.int64)
    source, target = stands_for[come], leaf_of_node[edges.target[drawn]]
    output = np.maximum(np.where(is_leaf[come], edges.output[drawn], came_out[come]), 0)
    lines = ~_setting_parameters(graph, order, source, target, value)
    if not lines.all():
        source, target, output, index, value = (ends[lines] for ends in (source, target, output, index, value))
    crosses = np.zeros(0, np.int64)
    if len(used) > 1:
        is_kept = _crossing(lane[order], is_op[order], source, target)
        crosses, stay = np.flatnonzero(is_kept), np.flatnonzero(~is_kept)
    kept_source, kept_output, kept_target = source[crosses], output[crosses], target[crosses]
    if len(crosses):
        source, output, target, index, value = (ends[stay] for ends in (source, output, target, index, value))
    if (np.diff(target * (int(index.max(initial=0)) + 1) + index) <= 0).any():  # else they are in order, as recorded
        by_target = np.lexsort((output, source, index, target))
        source, output, target, value = (ends[by_target] for ends in (source, output, target, value))
    first_edge, by_source = _firsts(target, len(order)), np.argsort(source, kind="stable")
    powers = _powers(max(len(columns["input_value"]), len(columns["output_value"]), len(order)) + 1)
    operation = digests(row.name for row in graph.tables.operations)[columns["node_operation"][order]]
    leaf_hash = _leaf_hashes(graph, order, operation, powers)
    wires = _Lines(source, output, target, first_edge)
    classes, module_class = _classes(graph)
    called = groups.call >= 0
    own = np.full(len(called), 7, np.uint64)
    own[called] = digests(classes)[module_class[columns["call_module"][groups.call[called]]]]
    group_hash, alike = _group_hashes(own, groups, leaf_hash, operation, wires, powers)
    return Tree(
        graph,
        classes,
        module_class,
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
        groups.iteration,
        group_hash,
        alike,
        kept_source,
        kept_output,
        kept_target,
        source,
        output,
        target,
        value,
        first_edge,
        by_source,
        _firsts(source, len(order)),
    )


def _classes(graph: Graph) -> tuple[list[str], Array]:
    """The classes of modules, and the number of each module's class. To look at 20,000 modules takes a while, so it is
    done once."""
    modules = graph.tables.modules
    number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    numbers = np.fromiter(map(number.__getitem__, map(attrgetter("type"), modules)), np.int64, len(modules))
    return list(number), numbers


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
    into = np.flatnonzero(passing[edges.target])
    target = edges.target[into]
    origin[target], output[target] = edges.source[into], edges.output[into]
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
    """Inputs and outputs that only ops read or make that are not drawn: what is drawn has no line to them.

    One that no op at all reads or makes stays.
    """
    joined = ~_crossing(lane, is_op, source, target)
    unused: Array = _near(is_op, is_op, source, target) & ~_near(is_op, wanted, source[joined], target[joined])
    return unused


def _near(is_op: Array, seed: Array, source: Array, target: Array) -> Array:
    """The inputs and outputs that an edge joins to one of some ops, directly or by way of other inputs and outputs."""
    marked = ~is_op[source] | ~is_op[target]  # the others tell nothing of inputs and outputs
    near_ends, far_ends = (
        np.concatenate(pair) for pair in ((source[marked], target[marked]), (target[marked], source[marked]))
    )
    reached = seed.copy()
    while True:  # an input that is returned as it is has the output's neighbours: a few rounds at most
        more = far_ends[reached[near_ends] & ~is_op[far_ends] & ~reached[far_ends]]
        if not len(more):
            return reached & ~is_op
        reached[more] = True


def _belated(graph: Graph, is_op: Array, lane: Array, iteration: Array, edges: _Edges) -> Array:
    """Ops that belong to the iteration before: an iteration ends with the step of its optimizer, and programs look at
    the loss after that. They run before any module does, outside of all, read what forward made in the iteration
    before, and nothing in their own iteration reads them."""
    count, called = len(graph), graph.columns["node_call"] >= 0
    if not count or not iteration.any():
        return np.zeros(count, bool)
    different, which = np.unique(iteration, return_inverse=True)  # a file may begin with iteration 2,000,000,000
    first_call = np.full(len(different), count)
    np.minimum.at(first_call, which[called], np.flatnonzero(called))
    late = is_op & (iteration > 0) & (lane == 0) & (np.arange(count) < first_call[which])
    before = iteration[edges.target] - iteration[edges.source]
    from_op = is_op[edges.source]
    late[edges.target[from_op & (lane[edges.source] > 0)]] = False
    while True:  # as many rounds as there are such ops in a row: one to ten
        readers = late[edges.source] & ~(late[edges.target] | (before < 0))
        if not readers.any():
            break
        late[edges.source[readers]] = False
    reads_before = np.zeros(count, bool)
    reads_before[edges.target[from_op & (before == 1)]] = True
    while True:
        more = reads_before[edges.source] & late[edges.source] & (before == 0) & ~reads_before[edges.target]
        if not more.any():
            belated: Array = late & reads_before
            return belated
        reads_before[edges.target[more]] = True


def _crossing(lane: Array, is_op: Array, source: Array, target: Array) -> Array:
    """Edges from one lane to another. What the program is given belongs to forward lanes, what it returns to all."""
    from_input = ~is_op[source] & (lane[target] % len(LANES) == 0)
    crosses: Array = (lane[source] != lane[target]) & ~from_input & is_op[target]
    return crosses


def _lay_inputs_into_lanes(is_op: Array, lane: Array, source: Array, target: Array) -> Array:
    """Give inputs that no forward op reads (moving averages of parameters, a gradient for backward) the lane of their
    first reader, in `lane`. Returns which these are. All other inputs lie before the lanes."""
    reads = ~is_op[source] & is_op[target]
    source, target = source[reads], target[reads]
    first_reader = np.full(len(lane), len(lane))
    np.minimum.at(first_reader, source, target)
    first_reader[source[lane[target] % len(LANES) == 0]] = len(lane)
    inside: Array = first_reader < len(lane)
    lane[inside] = lane[first_reader[inside]]
    return inside


def _setting_parameters(graph: Graph, leaves: Array, source: Array, target: Array, value: Array) -> Array:
    """Edges into modules from ops outside of all modules that set a parameter or buffer, as a program does that builds
    its model. Parameters are part of the boxes that read them and have no lines, whoever set them."""
    columns = graph.columns
    outside = columns["node_call"][leaves] < 0
    outside &= columns["node_kind"][leaves] == KINDS.index(NodeKind.OP)
    sets_parameter: Array = outside[source] & (columns["node_call"][leaves[target]] >= 0) & (value >= 0)
    sets_parameter[sets_parameter] = np.isin(columns["value_role"][value[sets_parameter]], _HELD)
    return sets_parameter


def _bookkeeping(graph: Graph, is_op: Array, edges: _Edges) -> Array:
    """Ops that only count calls in a buffer, or make room that nothing reads: batch norm does, and dropout for a mask
    that an op with a box of its own writes there."""
    columns, ptr = graph.columns, graph.columns["input_ptr"]
    unread = np.bincount(edges.source, minlength=len(graph)) == 0
    makes_room = np.array([row.name in UNINITIALIZED for row in graph.tables.operations] or [False])
    bookkeeping: Array = is_op & unread & makes_room[columns["node_operation"]]
    writers = np.searchsorted(ptr, np.flatnonzero(columns["input_written"]), side="right") - 1
    idle = unread & (ptr[1:] == ptr[:-1])
    idle[writers] = True  # only of these it matters what they read
    idle = np.flatnonzero(idle & is_op)
    strangers = columns["value_role"][columns["input_value"][members(ptr, idle)]] != ROLES.index(Role.BUFFER)
    reader = np.repeat(np.arange(len(idle)), ptr[idle + 1] - ptr[idle])
    bookkeeping[idle[np.bincount(reader[strangers], minlength=len(idle)) == 0]] = True
    return bookkeeping


class _Groups:
    """Module calls, the lanes above them, and above these iterations if there are several, as intervals of leaves."""

    def __init__(self, graph: Graph, leaves: Array, lane: Array, is_op: Array, inside: Array, lanes: bool) -> None:
        columns = graph.columns
        calls = len(columns["call_module"])
        ancestors = _ancestors(columns["call_parent"].astype(np.int64))
        call = np.where(is_op, columns["node_call"], -1)[leaves]
        levels: list[Array] = []  # per depth, for every leaf, the number of its group or -1
        iterations = False
        time = leaves  # when a leaf comes
        if lanes:  # outputs lie in their lanes, inputs before all lanes or, if they are `inside`, first in theirs
            before = (columns["node_kind"] == KINDS.index(NodeKind.INPUT)) & ~inside
            level = np.where(before, -1, lane)[leaves]
            time = np.where(inside[leaves], -1, 2 * leaves + 1)
            opened = _first_times(level, time)
            time = np.where(time < 0, opened - 1, time)
            iteration = np.where(level >= 0, level // len(LANES), -1)
            ran = iteration[iteration >= 0]
            iterations = bool((ran != ran[:1]).any())
            levels += [iteration, level] if iterations else [level]
        for at_depth in ancestors:
            level = np.append(at_depth, -1)[call]  # the last: of no call
            levels.append(np.where(level >= 0, lane[leaves] * calls + level, -1) if lanes else level)
        while levels and not (levels[-1] >= 0).any():
            levels.pop()
        self.order = leaves
        if not all(_contiguous(level) for level in levels):
            first = [_first_times(level, time) for level in levels]
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
        position = np.empty(len(start), np.int64)
        position[preorder] = np.arange(len(start))
        self.start, self.stop, self.depth = start[preorder], stop[preorder], depth[preorder]
        self.parent = np.where(parent >= 0, position[parent], -1)[preorder]
        is_lane = (depth == 1 + iterations) if lanes else np.zeros(len(depth), bool)
        is_iteration = (depth == 1) if iterations else np.zeros(len(depth), bool)
        self.lane = np.where(is_lane, key, -1)[preorder]
        self.iteration = np.where(is_iteration, key, -1)[preorder]
        self.call = np.where(is_lane | is_iteration | (key < 0), -1, key % max(calls, 1))[preorder]


def _ancestors(parent: Array) -> list[Array]:
    """Per depth, for every call, the call at that depth which it is in or is; -1 for calls above that depth."""
    count = len(parent)
    depth, above = np.zeros(count, np.int64), parent.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1)
    by_depth, current = [], np.arange(count)
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = depth[current] == level
        if level < _DEEPEST:
            by_depth.append(np.where(here, current, -1))
        current = np.where(here & (parent[current] >= 0), parent[current], current)
    return by_depth[::-1]


def _contiguous(level: Array) -> bool:
    """Whether every group is one run of leaves."""
    if not len(level):
        return True
    runs = level[np.concatenate([[True], level[1:] != level[:-1]]) & (level >= 0)]
    return len(np.unique(runs)) == len(runs)


def _first_times(level: Array, time: Array) -> Array:
    """What to sort by at one depth: when a leaf's group began, or for a leaf without one, itself. Times below zero are
    not known."""
    groups, group = np.unique(level, return_inverse=True)  # their numbers may be far apart
    first = np.full(len(groups), np.iinfo(np.int64).max)
    known = time >= 0
    np.minimum.at(first, group[known], time[known])
    return np.where(level >= 0, first[group], time)


# -- hashes ------------------------------------------------------------------------------------------------------------
#
# The hash of an interval is the sum of what is in it, each term times the power of an odd number that belongs to its
# place: a difference of two running sums. Multiplied by another power, the lower the later the interval begins, it does
# not depend on where that is.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Array) -> Array:
    """splitmix64: equal for equal numbers, in any process."""
    with np.errstate(over="ignore"):
        x = x.astype(np.uint64) + _GOLDEN
        x *= np.uint64(0xBF58476D1CE4E5B9)  # in place: a new array costs more than the arithmetic
        x ^= x >> np.uint64(29)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(32)
        return x


def digests(texts: Iterable[str]) -> Array:
    """A stable 64-bit number for every text."""
    texts = list(texts)
    known = {text: int.from_bytes(_digest(text), "little") for text in dict.fromkeys(texts)}
    return np.fromiter(map(known.__getitem__, texts), np.uint64, len(texts)) if texts else np.zeros(1, np.uint64)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


def _powers(count: int) -> Array:
    """The first powers of an odd number, from the first on."""
    powers = np.full(count, _GOLDEN)
    return np.multiply.accumulate(powers, out=powers)


def _between(terms: Array, first: Array, last: Array) -> Array:
    """The sums of terms over intervals."""
    sums = np.zeros(len(terms) + 1, np.uint64)
    np.cumsum(terms, out=sums[1:])
    totals: Array = sums[last] - sums[first]
    return totals


def _leaf_hashes(graph: Graph, nodes: Array, operation: Array, powers: Array) -> Array:
    """The operation, its arguments, and the shapes and dtypes of what it takes and makes."""
    columns, tables = graph.columns, graph.tables
    layouts = digests(f"{row.shape}{row.dtype}" for row in tables.layouts)
    arguments = columns["node_arguments"][nodes]
    with np.errstate(over="ignore"):
        hashes = _mix(operation) + np.where(arguments >= 0, digests(tables.arguments)[arguments], np.uint64(0))
        for name, weight in (("input", np.uint64(3)), ("output", np.uint64(5))):
            value, ptr = columns[f"{name}_value"], columns[f"{name}_ptr"]
            first, count = ptr[nodes], len(value)
            terms = layouts[columns["value_layout"][value]]
            terms *= powers[:count]
            hashes += _between(terms, first, ptr[nodes + 1]) * powers[count - first] * weight
        return _mix(hashes)


@dataclass
class _Lines:
    source: Array
    output: Array
    target: Array
    first: Array  # leaf -> the first of those that enter it; one more at the end


def _group_hashes(
    own: Array, groups: _Groups, leaf_hash: Array, operation: Array, lines: _Lines, powers: Array
) -> tuple[Array, Array]:
    """Two hashes of every group, of its own class, what is inside and where, and its wiring: one exact, one of
    operations only, whatever the shapes.

    The exact one also holds where lines from outside arrive.
    """
    start, stop, count = groups.start, groups.stop, len(leaf_hash)
    first, last = lines.first[start], lines.first[stop]
    with np.errstate(over="ignore"):
        exact = _between(leaf_hash * powers[:count], start, stop)
        alike = _between(operation * powers[:count], start, stop)
        at = powers[lines.target]
        reach = (lines.target - lines.source).astype(np.uint64)
        inner = _mix(reach * np.uint64(8191) + lines.output.astype(np.uint64) * np.uint64(17)) * at
        for depth in range(int(groups.depth.max()) + 1):
            here = np.flatnonzero(groups.depth == depth)
            outer = lines.source < _starts(start[here], stop[here], count)[lines.target]
            sums = _between(np.where(outer, np.uint64(0), inner), first[here], last[here])
            alike[here] += sums
            exact[here] += sums + _between(np.where(outer, at, np.uint64(0)), first[here], last[here])
        shift = powers[count - start]
        return _mix(exact * shift + own), _mix(alike * shift + own)


def _starts(start: Array, stop: Array, count: int) -> Array:
    """For every leaf the start of its group, among groups side by side; -1 for a leaf in none."""
    change = np.zeros(count + 1, np.int64)
    change[start] = start + 1
    change[stop] -= start + 1
    starts: Array = np.cumsum(change[:-1]) - 1
    return starts

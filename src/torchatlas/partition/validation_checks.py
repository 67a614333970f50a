"""A partition -> what is true of every right one, checked: each check is worked out anew from the graph, and can fail.

Nothing here calls the partitioner's own code: nodes, dependencies and bytes are followed value by value through the
graph's columns, and work is asked of `atlas.cost`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from torchatlas.analysis.cost import CostReport, cost
from torchatlas.analysis.sizes import RAGGED
from torchatlas.graph import EdgeKind, NodeKind, Role
from torchatlas.graph.columns import EDGE_KINDS, KINDS, ROLES
from torchatlas.operations.work import Operand
from torchatlas.partition.report import PartitionReport

_WEIGHTS = {ROLES.index(role) for role in (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)}


@dataclass(frozen=True)
class Check:
    """One question about a partition. `passed` is None where it could not be asked; `detail` says why, or what differs.

    A check that would pass whatever the partition is must not be asked.
    """

    name: str
    passed: bool | None
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail}


def checks_of(report: PartitionReport, again: PartitionReport | None = None) -> list[Check]:
    """All checks that need nothing to run. `again` is a second partition of the same thing."""
    found = _Facts(report)
    checks = [
        _check("each node once", _nodes(found), f"{len(found.ops):,} operations in {len(report):,} subgraphs"),
        _check("no circle", _circle(found), f"{sum(map(len, found.needs)):,} dependencies"),
        _check("dependencies", _dependencies(found), _dependency_detail(found)),
        _check("order", _order(found), "each subgraph after what it depends on"),
        _check("bytes", _bytes(found), f"{sum(found.crossing.values()):,} bytes over {len(found.crossing):,} borders"),
        _check("work", _work(found), f"{report.total_macs:,} multiply-adds, as atlas.cost"),
        _check("weights", _weights(found), _weight_detail(found)),
        _check("no unknown op", _unknown(found), f"{len(report.operation_type_counts):,} kinds"),
    ]
    if again is not None:
        checks.append(_check("stable", _stable(report, again), "the same subgraphs, ids and reasons twice"))
    return checks


def _check(name: str, wrong: Iterable[str], detail: str) -> Check:
    """Passed if nothing is wrong; else the first things that are."""
    listed = [text for text, _ in zip(wrong, range(4), strict=False)]
    more = ["..."] if len(listed) == 4 else []
    return Check(name, not listed, "; ".join(listed[:3] + more) or detail)


class _Facts:
    """The graph under a report, looked at directly."""

    def __init__(self, report: PartitionReport) -> None:
        self.report, self.graph = report, report.graph
        columns = self.graph.columns
        op = KINDS.index(NodeKind.OP)
        self.ops = [node for node, kind in enumerate(columns["node_kind"].tolist()) if kind == op]
        self.is_op = set(self.ops)
        self.storage: list[int] = columns["value_storage"].tolist()
        self.producer: list[int] = columns["value_producer"].tolist()
        self.ids = [one.node_id for one in report.subgraphs]
        self.number = {node_id: at for at, node_id in enumerate(self.ids)}
        self.home = {op: at for at, one in enumerate(report.subgraphs) for op in one.ops}
        self.names = {name: at for at, one in enumerate(report.subgraphs) for name in one.nodes}

    @cached_property
    def cost(self) -> CostReport:
        return cost(self.graph)

    @cached_property
    def taken(self) -> list[list[tuple[int, bool]]]:
        """Per node the values it takes, and whether it writes into each."""
        columns = self.graph.columns
        ends, values = columns["input_ptr"].tolist(), columns["input_value"].tolist()
        written = columns["input_written"].astype(bool).tolist()
        return [list(zip(values[a:b], written[a:b], strict=True)) for a, b in pairwise(ends)]

    @cached_property
    def made(self) -> list[list[int]]:
        columns = self.graph.columns
        ends, values = columns["output_ptr"].tolist(), columns["output_value"].tolist()
        return [[one for one in values[a:b] if one >= 0] for a, b in pairwise(ends)]

    @cached_property
    def is_view(self) -> set[int]:
        """Operations that atlas.cost says move and compute nothing."""
        counts = self.cost.counts
        rows = zip(
            counts.macs.tolist(), counts.elementwise_flops.tolist(), counts.bytes.tolist(), strict=True
        )  # -1 is unknown, not nothing
        nothing = {node for node, row in enumerate(rows) if row == (0, 0, 0)}
        return nothing & self.is_op

    @cached_property
    def value_bytes(self) -> list[int]:
        known = {**self.cost.sizes, RAGGED: 0}
        sizes = [Operand.of(layout, known).bytes for layout in self.graph.tables.layouts]
        return [sizes[layout] for layout in self.graph.columns["value_layout"].tolist()]

    @cached_property
    def base(self) -> list[int]:
        """Per value the one whose memory it looks at, through views."""
        found: list[int] = []
        for value, producer in enumerate(self.producer):
            looked_at = [one for one, _ in self.taken[producer]] if producer in self.is_view else []
            same = [one for one in looked_at if one < value and self.storage[one] == self.storage[value]]
            found.append(found[same[0]] if same else value)
        return found

    def maker(self, value: int) -> int | None:
        """The operation that wrote a value's memory; None for what was there before."""
        node = self.producer[self.base[value]]
        return node if node in self.is_op else None

    def is_weight(self, value: int) -> bool:
        storage = self.storage[value]
        role = int(self.graph.columns["storage_role"][storage]) if storage >= 0 else -1
        return role in _WEIGHTS and self.maker(value) is None

    def total(self, values: Iterable[int]) -> int:
        """Bytes of distinct values; of one memory never more than it has."""
        of_storage: dict[int, int] = defaultdict(int)
        for value in set(values):
            of_storage[self.storage[value]] += self.value_bytes[value]
        whole = self.graph.columns["storage_bytes"]
        return sum(
            min(size, int(whole[storage])) if storage >= 0 and whole[storage] >= 0 else size
            for storage, size in of_storage.items()
        )

    # -- dependencies ------------------------------------------------------------------------------------------------

    @cached_property
    def claimed(self) -> list[set[int]]:
        """Per subgraph what the report says it depends on; what is no subgraph is left to the check of circles."""
        return [{self.number[one] for one in s.depends_on if one in self.number} for s in self.report.subgraphs]

    @cached_property
    def needs(self) -> list[set[int]]:
        """Per subgraph those that it depends on directly, by the edges of the graph and of torch.fx's."""
        found: list[set[int]] = [set() for _ in self.report.subgraphs]
        columns = self.graph.columns
        edges = zip(columns["edge_source"].tolist(), columns["edge_target"].tolist(), strict=True)
        for source, target in edges:
            a, b = self.home.get(source), self.home.get(target)
            if a is not None and b is not None and a != b:
                found[b].add(a)
        for a, b in self._fx_edges():
            if a != b:
                found[b].add(a)
        return found

    def _fx_edges(self) -> Iterator[tuple[int, int]]:
        """Pairs of subgraphs along torch.fx's own arguments: a Dropout that runs nothing is in no other graph."""
        if "fx_nodes" not in self.graph.metadata or self.report.origin is None:
            return
        behind: dict[Any, set[int]] = {}
        for node in self.report.origin.graph.nodes:
            before = {one for other in node.all_input_nodes for one in behind[other]}
            mine = self.names.get(node.name)
            behind[node] = before if mine is None else {mine}
            if mine is not None:
                yield from ((one, mine) for one in before)

    @cached_property
    def by_memory(self) -> list[set[int]]:
        """Claimed dependencies that no edge shows, and that are right: both touch memory that one of them writes.

        In an exported graph a reshape looks like a view, but may copy: it keeps its place among the writes.
        """
        touched: list[set[int]] = [set() for _ in self.report.subgraphs]
        written: list[set[int]] = [set() for _ in self.report.subgraphs]
        for op, at in self.home.items():
            for value, writes in self.taken[op]:
                touched[at].add(self.storage[value])
                if writes:
                    written[at].add(self.storage[value])
        return [
            {one for one in claimed - needed if touched[at] & written[one] or written[at] & touched[one]}
            for at, (claimed, needed) in enumerate(zip(self.claimed, self.needs, strict=True))
        ]

    # -- bytes -------------------------------------------------------------------------------------------------------

    @cached_property
    def reads(self) -> list[tuple[int, int]]:
        """(node, value): what each node that is no view takes, by the arguments it was called with.

        What an operation overwrites without a look at it has an edge that says order, not data.
        """
        columns, order = self.graph.columns, EDGE_KINDS.index(EdgeKind.ORDER)
        names = ("edge_target", "edge_value", "edge_kind")
        edges = set(zip(*(columns[name].tolist() for name in names), strict=True))
        overwritten = {(node, value) for node, value, kind in edges if kind == order} - {
            (node, value) for node, value, kind in edges if kind != order
        }
        return [
            (node, value)
            for node, taken in enumerate(self.taken)
            if node not in self.is_view
            for value, writes in taken
            if not (writes and self.producer[value] >= 0 and (node, value) in overwritten)
        ]

    @cached_property
    def crossing(self) -> dict[tuple[int, int], int]:
        """Bytes from subgraph to subgraph, as the readers see them: by what they were called with."""
        return self._crossing((self.maker(value), node, value) for node, value in self.reads)

    @cached_property
    def handed_on(self) -> dict[tuple[int, int], int]:
        """The same as the writers see it: by the edges that leave them and the views of what they made."""
        columns, data = self.graph.columns, EDGE_KINDS.index(EdgeKind.DATA)
        leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
        names = ("edge_source", "edge_target", "edge_value", "edge_kind")
        for source, target, value, kind in zip(*(columns[name].tolist() for name in names), strict=True):
            if kind == data:
                leaving[source].append((target, value))
        found: list[tuple[int | None, int, int]] = []
        for writer in self.ops:
            if writer in self.is_view and all(self.maker(one) != writer for one in self.made[writer]):
                continue
            waiting, seen = [writer], {writer}
            while waiting:
                for target, value in leaving[waiting.pop()]:
                    if self.maker(value) != writer:
                        continue
                    if target not in self.is_view:
                        found.append((writer, target, value))
                    elif target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return self._crossing(found)

    def _crossing(self, reads: Iterable[tuple[int | None, int, int]]) -> dict[tuple[int, int], int]:
        values: dict[tuple[int, int], set[int]] = defaultdict(set)
        for writer, reader, value in reads:
            a, b = self.home.get(writer) if writer is not None else None, self.home.get(reader)
            if a is not None and b is not None and a != b and not self.is_weight(value):
                values[a, b].add(value)
        return {pair: self.total(found) for pair, found in values.items()}

    @cached_property
    def inputs(self) -> list[int]:
        """Per subgraph the bytes of activations that it takes from outside."""
        values: list[set[int]] = [set() for _ in self.report.subgraphs]
        for node, value in self.reads:
            at, writer = self.home.get(node), self.maker(value)
            if at is not None and not self.is_weight(value) and (writer is None or self.home.get(writer) != at):
                values[at].add(value)
        return [self.total(found) for found in values]

    @cached_property
    def outputs(self) -> list[int]:
        """Per subgraph the bytes that it writes and that not only it reads."""
        readers: dict[int, set[int | None]] = defaultdict(set)
        for node, value in self.reads:
            readers[self.base[value]].add(self.home.get(node))
        values: list[set[int]] = [set() for _ in self.report.subgraphs]
        for op, at in self.home.items():
            for value in self.made[op] if op not in self.is_view else ():
                if self.maker(value) == op and readers.get(value, set()) != {at}:
                    values[at].add(value)
        return [self.total(found) for found in values]

    @cached_property
    def weights(self) -> list[set[int]]:
        """Per subgraph the values of parameters, buffers and constants that it reads."""
        values: list[set[int]] = [set() for _ in self.report.subgraphs]
        for node, value in self.reads:
            at = self.home.get(node)
            if at is not None and self.is_weight(value):
                values[at].add(value)
        return values

    @property
    def parameters_read(self) -> int:
        """How many numbers of parameters the subgraphs read, each once."""
        columns, layouts = self.graph.columns, self.graph.tables.layouts
        known = {**self.cost.sizes, RAGGED: 0}
        found: dict[int, int] = {}
        for value in set().union(*self.weights):
            base = self.base[value]
            if columns["storage_role"][self.storage[base]] == ROLES.index(Role.PARAMETER):
                numel = Operand.of(layouts[int(columns["value_layout"][base])], known).numel
                found[self.storage[base]] = max(found.get(self.storage[base], 0), numel)
        return sum(found.values())

    @property
    def weight_bytes(self) -> int:
        return sum(self.total(found) for found in self.weights)


# -- the checks: each yields what is wrong -----------------------------------------------------------------------------


def _nodes(found: _Facts) -> Iterator[str]:
    report, seen = found.report, dict[Any, str]()
    for one in report.subgraphs:
        for item in (*one.ops, *one.nodes):
            if item in seen:
                yield f"{_called(found, item)} is in {seen[item]} and in {one.node_id}"
            seen[item] = one.node_id
        expected = _ops_of_nodes(found, one.nodes)
        if expected != set(one.ops):
            yield f"the nodes and the operations of {one.node_id} are not the same"
    for op in found.ops:
        if op not in found.home:
            yield f"{_called(found, op)} is in no subgraph"
    for op in found.home:
        if op not in found.is_op:
            yield f"{op} is no operation of the graph"
    for name in _fx_calls(found):
        if name not in found.names:
            yield f"node {name} is in no subgraph"
    if len(report.subgraphs) != report.total_subgraphs or len(set(found.ids)) != len(found.ids):
        yield f"{len(set(found.ids)):,} subgraphs, {report.total_subgraphs:,} in the total"


def _fx_calls(found: _Facts) -> Iterator[str]:
    """The nodes of torch.fx's graph that hand on a tensor, also if they run nothing, as a Dropout in eval mode."""
    ran = found.graph.metadata.get("fx_nodes", {})
    yield from ran
    for node in found.report.origin.graph.nodes if ran and found.report.origin is not None else ():
        if node.name not in ran and (
            node.op == "call_module" or (node.op[:5] == "call_" and "tensor_meta" in node.meta)
        ):
            yield node.name


def _ops_of_nodes(found: _Facts, names: Iterable[str]) -> set[int]:
    ran = found.graph.metadata.get("fx_nodes")
    if ran is not None:
        return {op for name in names for op in ran.get(name, ())}
    by_name = found.graph.index.by_name
    return {by_name.get(name, -1) for name in names}


def _called(found: _Facts, item: Any) -> str:
    return found.graph.nodes[item].name if item in found.is_op else str(item)


def _circle(found: _Facts) -> Iterator[str]:
    """Groups that wait for each other, by the graph's edges or by what the report says."""
    for one in found.report.subgraphs:
        for other in one.depends_on:
            if other not in found.number:
                yield f"{one.node_id} depends on {other}, which is no subgraph"
    for needs, whose in ((found.claimed, "as reported"), (found.needs, "in the graph")):
        if left := _in_circles(needs):
            ids = ", ".join(found.ids[at] for at in left[:5])
            yield f"wait for each other, {whose}: {ids}{' ...' if len(left) > 5 else ''}"


def _in_circles(needs: list[set[int]]) -> list[int]:
    """What is left when all that waits for nothing is taken away, again and again."""
    missing, after = [len(one) for one in needs], defaultdict(list)
    for at, before in enumerate(needs):
        for one in before:
            after[one].append(at)
    ready = [at for at, count in enumerate(missing) if not count]
    for at in ready:
        for one in after[at]:
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    return sorted(set(range(len(needs))) - set(ready))


def _dependencies(found: _Facts) -> Iterator[str]:
    """Equal one by one, so equal in all that can be reached."""
    for at, (needed, said) in enumerate(zip(found.needs, found.claimed, strict=True)):
        for one in sorted(needed - said):
            yield f"{found.ids[at]} needs {found.ids[one]} and does not say so"
        for one in sorted(said - needed - found.by_memory[at]):
            yield f"{found.ids[at]} does not need {found.ids[one]} and says so"


def _dependency_detail(found: _Facts) -> str:
    extra = sum(map(len, found.by_memory))
    return "those of the graph's edges" + (f", and {extra:,} by the order of writes" if extra else "")


def _order(found: _Facts) -> Iterator[str]:
    for at, one in enumerate(found.report.subgraphs):
        places = [found.number.get(other, -1) for other in one.depends_on]
        if places != sorted(set(places)):
            yield f"{one.node_id} lists what it depends on out of order"
        for other in one.depends_on:
            if found.number.get(other, at) >= at:
                yield f"{one.node_id} comes before {other}, which it depends on"


def _bytes(found: _Facts) -> Iterator[str]:
    report = found.report
    said = {
        (found.number.get(one.source, -1), found.number.get(one.target, -1)): one.bytes for one in report.boundaries
    }
    if len(said) < len(report.boundaries):
        yield "a border is listed twice"
    for pair in sorted({*said, *found.crossing, *found.handed_on}):
        three = (said.get(pair), found.handed_on.get(pair), found.crossing.get(pair))
        if len(set(three)) > 1:
            a, b = (found.ids[at] if at >= 0 else "?" for at in pair)
            yield f"{a} to {b}: {three[0]} bytes reported, {three[1]} leave, {three[2]} arrive"
    for at, one in enumerate(report.subgraphs):
        if one.total_input_bytes != found.inputs[at]:
            yield f"{one.node_id} takes {found.inputs[at]} bytes, {one.total_input_bytes} reported"
        made = one.total_output_bytes + one.saved_for_backward_bytes
        if made != found.outputs[at]:
            yield f"{one.node_id} makes {found.outputs[at]} bytes, {made} reported"
    for name in ("total_input_bytes", "total_output_bytes", "saved_for_backward_bytes"):
        if getattr(report, name) != sum(getattr(one, name) for one in report.subgraphs):
            yield f"{name} is not the sum over subgraphs"


def _work(found: _Facts) -> Iterator[str]:
    report, counts, total = found.report, found.cost.counts, found.cost.total
    for one in report.subgraphs:
        ops = [op for op in one.ops if op in found.is_op and counts.macs[op] >= 0]
        macs, other = sum(int(counts.macs[op]) for op in ops), sum(int(counts.elementwise_flops[op]) for op in ops)
        if (one.macs, one.flops, one.elementwise_flops) != (macs, 2 * macs, other):
            said = f"{one.macs} and {one.elementwise_flops}, {one.flops} FLOPs"
            yield f"{one.node_id} has {macs} multiply-adds and {other} others, not {said}"
    totals = {
        "total_macs": (sum(one.macs for one in report.subgraphs), total.macs),
        "total_flops": (sum(one.flops for one in report.subgraphs), total.flops),
        "total_elementwise_flops": (sum(one.elementwise_flops for one in report.subgraphs), total.elementwise_flops),
    }
    if not report.uncosted:
        totals["unfused_bytes"] = (sum(one.unfused_bytes for one in report.subgraphs), total.bytes)
    for name, (parts, whole) in totals.items():
        if not getattr(report, name) == parts == whole:
            yield f"{name} {getattr(report, name)}, {parts} over subgraphs, {whole} by atlas.cost"
    if not sum(one.traffic_bytes for one in report.subgraphs) == report.total_bytes <= report.unfused_bytes:
        yield f"{report.total_bytes} bytes move, more than {report.unfused_bytes} unfused or not the sum over subgraphs"


def _weights(found: _Facts) -> Iterator[str]:
    report = found.report
    for at, one in enumerate(report.subgraphs):
        size = found.total(found.weights[at])
        if one.total_weight_bytes != size:
            yield f"{one.node_id} reads {size} bytes of weights, {one.total_weight_bytes} reported"
    if report.total_weight_bytes != sum(one.total_weight_bytes for one in report.subgraphs):
        yield "total_weight_bytes is not the sum over subgraphs"
    held = {found.storage[value] for values in found.weights for value in values}
    for node, value in found.reads:
        if node in found.is_op and found.is_weight(value) and found.storage[value] not in held:
            yield f"{found.graph.nodes[node].name} reads weights that no subgraph reads"
    if found.parameters_read > found.cost.parameters:
        yield f"{found.parameters_read} parameters are read, and atlas.cost counts {found.cost.parameters}"


def _weight_detail(found: _Facts) -> str:
    return f"{found.parameters_read:,} of {found.cost.parameters:,} parameters read, {found.weight_bytes:,} bytes"


def _unknown(found: _Facts) -> Iterator[str]:
    report = found.report
    for name, times in found.cost.uncosted.items():
        yield f"{name} ({times}) has no formula"
    for one in report.subgraphs:
        if one.uncosted:
            yield f"{one.node_id} holds {one.uncosted} unknown operations"
    if "unknown" in report.operation_type_counts:
        yield f"{report.operation_type_counts['unknown']} operations are of no known kind"
    if sum(report.operation_type_counts.values()) != len(found.ops):
        yield f"{sum(report.operation_type_counts.values())} operations by kind, {len(found.ops)} in the graph"


def _stable(one: PartitionReport, two: PartitionReport) -> Iterator[str]:
    if len(one) != len(two):
        yield f"{len(one):,} subgraphs, then {len(two):,}"
    for a, b in zip(one.subgraphs, two.subgraphs, strict=False):
        if (a.node_id, a.node_name, a.nodes, a.depends_on, a.partition_reason) != (
            b.node_id,
            b.node_name,
            b.nodes,
            b.depends_on,
            b.partition_reason,
        ):
            yield f"{a.node_id} ({a.node_name}) is {b.node_id} ({b.node_name}) the second time"
    if one.boundaries != two.boundaries:
        yield "the borders differ"

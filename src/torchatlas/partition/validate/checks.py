"""A partition -> checks that every correct one passes. Each can fail.

Nothing here calls the partitioner's own code: graph_facts.py works out nodes, dependencies and bytes again, and work
comes from `atlas.cost`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torchatlas.analysis.reports import Report
from torchatlas.partition.report import PartitionReport
from torchatlas.partition.validate.graph_facts import GraphFacts


@dataclass(frozen=True)
class PartitionCheck(Report):
    """One question about a partition. `passed` is None where it could not be asked; `detail` says why, or what differs.

    A check that would pass whatever the partition is must not be asked.
    """

    name: str
    passed: bool | None
    detail: str


def checks_of(report: PartitionReport, again: PartitionReport | None = None) -> list[PartitionCheck]:
    """All checks that need nothing to run. `again` is a second partition of the same thing."""
    found = GraphFacts(report)
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


def _check(name: str, wrong: Iterable[str], detail: str) -> PartitionCheck:
    """Passed if nothing is wrong; else the first things that are."""
    listed = [text for text, _ in zip(wrong, range(4), strict=False)]
    more = ["..."] if len(listed) == 4 else []
    return PartitionCheck(name, not listed, "; ".join(listed[:3] + more) or detail)


# -- the checks: each yields what is wrong -----------------------------------------------------------------------------


def _nodes(found: GraphFacts) -> Iterator[str]:
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


def _fx_calls(found: GraphFacts) -> Iterator[str]:
    """The nodes of torch.fx's graph that hand on a tensor, also if they run nothing, as a Dropout in eval mode."""
    ran = found.graph.metadata.get("fx_nodes", {})
    yield from ran
    for node in found.report.origin.graph.nodes if ran and found.report.origin is not None else ():
        if node.name not in ran and (
            node.op == "call_module" or (node.op[:5] == "call_" and "tensor_meta" in node.meta)
        ):
            yield node.name


def _ops_of_nodes(found: GraphFacts, names: Iterable[str]) -> set[int]:
    ran = found.graph.metadata.get("fx_nodes")
    if ran is not None:
        return {op for name in names for op in ran.get(name, ())}
    by_name = found.graph.index.by_name
    return {by_name.get(name, -1) for name in names}


def _called(found: GraphFacts, item: Any) -> str:
    return found.graph.nodes[item].name if item in found.is_op else str(item)


def _circle(found: GraphFacts) -> Iterator[str]:
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
    """The rest after repeatedly removing what depends on nothing that is left."""
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


def _dependencies(found: GraphFacts) -> Iterator[str]:
    """Equal one by one, so equal in all that can be reached."""
    for at, (needed, said) in enumerate(zip(found.needs, found.claimed, strict=True)):
        for one in sorted(needed - said):
            yield f"{found.ids[at]} needs {found.ids[one]} and does not say so"
        for one in sorted(said - needed - found.by_memory[at]):
            yield f"{found.ids[at]} does not need {found.ids[one]} and says so"


def _dependency_detail(found: GraphFacts) -> str:
    extra = sum(map(len, found.by_memory))
    return "those of the graph's edges" + (f", and {extra:,} by the order of writes" if extra else "")


def _order(found: GraphFacts) -> Iterator[str]:
    for at, one in enumerate(found.report.subgraphs):
        places = [found.number.get(other, -1) for other in one.depends_on]
        if places != sorted(set(places)):
            yield f"{one.node_id} lists what it depends on out of order"
        for other in one.depends_on:
            if found.number.get(other, at) >= at:
                yield f"{one.node_id} comes before {other}, which it depends on"


def _bytes(found: GraphFacts) -> Iterator[str]:
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


def _work(found: GraphFacts) -> Iterator[str]:
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


def _weights(found: GraphFacts) -> Iterator[str]:
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


def _weight_detail(found: GraphFacts) -> str:
    return f"{found.parameters_read:,} of {found.cost.parameters:,} parameters read, {found.weight_bytes:,} bytes"


def _unknown(found: GraphFacts) -> Iterator[str]:
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
    identity = attrgetter("node_id", "node_name", "nodes", "depends_on", "partition_reason")
    if len(one) != len(two):
        yield f"{len(one):,} subgraphs, then {len(two):,}"
    for a, b in zip(one.subgraphs, two.subgraphs, strict=False):
        if identity(a) != identity(b):
            yield f"{a.node_id} ({a.node_name}) is {b.node_id} ({b.node_name}) the second time"
    if one.boundaries != two.boundaries:
        yield "the borders differ"

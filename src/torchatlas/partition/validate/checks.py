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
    facts = GraphFacts(report)
    checks = [
        _check("each node once", _nodes(facts), f"{len(facts.ops):,} operations in {len(report):,} subgraphs"),
        _check("no circle", _circle(facts), f"{sum(map(len, facts.needs)):,} dependencies"),
        _check("dependencies", _dependencies(facts), _dependency_detail(facts)),
        _check("order", _order(facts), "each subgraph after what it depends on"),
        _check("bytes", _bytes(facts), f"{sum(facts.crossing.values()):,} bytes over {len(facts.crossing):,} borders"),
        _check("work", _work(facts), f"{report.total_macs:,} multiply-adds, as atlas.cost"),
        _check("weights", _weights(facts), _weight_detail(facts)),
        _check("no unknown op", _unknown(facts), f"{len(report.operation_type_counts):,} kinds"),
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


def _nodes(facts: GraphFacts) -> Iterator[str]:
    report, seen = facts.report, dict[Any, str]()
    for subgraph in report.subgraphs:
        for item in (*subgraph.ops, *subgraph.nodes):
            if item in seen:
                yield f"{_called(facts, item)} is in {seen[item]} and in {subgraph.node_id}"
            seen[item] = subgraph.node_id
        expected = _ops_of_nodes(facts, subgraph.nodes)
        if expected != set(subgraph.ops):
            yield f"the nodes and the operations of {subgraph.node_id} are not the same"
    for op in facts.ops:
        if op not in facts.home:
            yield f"{_called(facts, op)} is in no subgraph"
    for op in facts.home:
        if op not in facts.is_op:
            yield f"{op} is no operation of the graph"
    for name in _fx_calls(facts):
        if name not in facts.names:
            yield f"node {name} is in no subgraph"
    if len(report.subgraphs) != report.total_subgraphs or len(set(facts.ids)) != len(facts.ids):
        yield f"{len(set(facts.ids)):,} subgraphs, {report.total_subgraphs:,} in the total"


def _fx_calls(facts: GraphFacts) -> Iterator[str]:
    """The nodes of torch.fx's graph that hand on a tensor, also if they run nothing, as a Dropout in eval mode."""
    ran = facts.graph.metadata.get("fx_nodes", {})
    yield from ran
    for node in facts.report.origin.graph.nodes if ran and facts.report.origin is not None else ():
        if node.name not in ran and (
            node.op == "call_module" or (node.op[:5] == "call_" and "tensor_meta" in node.meta)
        ):
            yield node.name


def _ops_of_nodes(facts: GraphFacts, names: Iterable[str]) -> set[int]:
    ran = facts.graph.metadata.get("fx_nodes")
    if ran is not None:
        return {op for name in names for op in ran.get(name, ())}
    by_name = facts.graph.index.by_name
    return {by_name.get(name, -1) for name in names}


def _called(facts: GraphFacts, item: Any) -> str:
    return facts.graph.nodes[item].name if item in facts.is_op else str(item)


def _circle(facts: GraphFacts) -> Iterator[str]:
    """Groups that wait for each other, by the graph's edges or by what the report says."""
    for subgraph in facts.report.subgraphs:
        for other in subgraph.depends_on:
            if other not in facts.number:
                yield f"{subgraph.node_id} depends on {other}, which is no subgraph"
    for needs, whose in ((facts.claimed, "as reported"), (facts.needs, "in the graph")):
        if left := _in_circles(needs):
            ids = ", ".join(facts.ids[at] for at in left[:5])
            yield f"wait for each other, {whose}: {ids}{' ...' if len(left) > 5 else ''}"


def _in_circles(needs: list[set[int]]) -> list[int]:
    """The rest after repeatedly removing what depends on nothing that is left."""
    missing, after = [len(before) for before in needs], defaultdict(list)
    for at, before in enumerate(needs):
        for earlier in before:
            after[earlier].append(at)
    ready = [at for at, count in enumerate(missing) if not count]
    for at in ready:
        for later in after[at]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    return sorted(set(range(len(needs))) - set(ready))


def _dependencies(facts: GraphFacts) -> Iterator[str]:
    """Direct dependencies must be equal; then indirect ones are, too."""
    for at, (needed, said) in enumerate(zip(facts.needs, facts.claimed, strict=True)):
        for other in sorted(needed - said):
            yield f"{facts.ids[at]} needs {facts.ids[other]} and does not say so"
        for other in sorted(said - needed - facts.by_memory[at]):
            yield f"{facts.ids[at]} does not need {facts.ids[other]} and says so"


def _dependency_detail(facts: GraphFacts) -> str:
    extra = sum(map(len, facts.by_memory))
    return "those of the graph's edges" + (f", and {extra:,} by the order of writes" if extra else "")


def _order(facts: GraphFacts) -> Iterator[str]:
    for at, subgraph in enumerate(facts.report.subgraphs):
        places = [facts.number.get(other, -1) for other in subgraph.depends_on]
        if places != sorted(set(places)):
            yield f"{subgraph.node_id} lists what it depends on out of order"
        for other in subgraph.depends_on:
            if facts.number.get(other, at) >= at:
                yield f"{subgraph.node_id} comes before {other}, which it depends on"


def _bytes(facts: GraphFacts) -> Iterator[str]:
    report = facts.report
    said = {
        (facts.number.get(border.source, -1), facts.number.get(border.target, -1)): border.bytes
        for border in report.boundaries
    }
    if len(said) < len(report.boundaries):
        yield "a border is listed twice"
    for pair in sorted({*said, *facts.crossing, *facts.handed_on}):
        three = (said.get(pair), facts.handed_on.get(pair), facts.crossing.get(pair))
        if len(set(three)) > 1:
            a, b = (facts.ids[at] if at >= 0 else "?" for at in pair)
            yield f"{a} to {b}: {three[0]} bytes reported, {three[1]} leave, {three[2]} arrive"
    for at, subgraph in enumerate(report.subgraphs):
        if subgraph.total_input_bytes != facts.inputs[at]:
            yield f"{subgraph.node_id} takes {facts.inputs[at]} bytes, {subgraph.total_input_bytes} reported"
        made = subgraph.total_output_bytes + subgraph.saved_for_backward_bytes
        if made != facts.outputs[at]:
            yield f"{subgraph.node_id} makes {facts.outputs[at]} bytes, {made} reported"
    for name in ("total_input_bytes", "total_output_bytes", "saved_for_backward_bytes"):
        if getattr(report, name) != sum(getattr(subgraph, name) for subgraph in report.subgraphs):
            yield f"{name} is not the sum over subgraphs"


def _work(facts: GraphFacts) -> Iterator[str]:
    report, counts, total = facts.report, facts.cost.counts, facts.cost.total
    for subgraph in report.subgraphs:
        ops = [op for op in subgraph.ops if op in facts.is_op and counts.macs[op] >= 0]
        macs, other = sum(int(counts.macs[op]) for op in ops), sum(int(counts.elementwise_flops[op]) for op in ops)
        if (subgraph.macs, subgraph.flops, subgraph.elementwise_flops) != (macs, 2 * macs, other):
            said = f"{subgraph.macs} and {subgraph.elementwise_flops}, {subgraph.flops} FLOPs"
            yield f"{subgraph.node_id} has {macs} multiply-adds and {other} others, not {said}"
    totals = {
        "total_macs": (sum(subgraph.macs for subgraph in report.subgraphs), total.macs),
        "total_flops": (sum(subgraph.flops for subgraph in report.subgraphs), total.flops),
        "total_elementwise_flops": (
            sum(subgraph.elementwise_flops for subgraph in report.subgraphs),
            total.elementwise_flops,
        ),
    }
    if not report.uncosted:
        totals["unfused_bytes"] = (sum(subgraph.unfused_bytes for subgraph in report.subgraphs), total.bytes)
    for name, (parts, whole) in totals.items():
        if not getattr(report, name) == parts == whole:
            yield f"{name} {getattr(report, name)}, {parts} over subgraphs, {whole} by atlas.cost"
    if not sum(subgraph.traffic_bytes for subgraph in report.subgraphs) == report.total_bytes <= report.unfused_bytes:
        yield f"{report.total_bytes} bytes move, more than {report.unfused_bytes} unfused or not the sum over subgraphs"


def _weights(facts: GraphFacts) -> Iterator[str]:
    report = facts.report
    for at, subgraph in enumerate(report.subgraphs):
        size = facts.total(facts.weights[at])
        if subgraph.total_weight_bytes != size:
            yield f"{subgraph.node_id} reads {size} bytes of weights, {subgraph.total_weight_bytes} reported"
    if report.total_weight_bytes != sum(subgraph.total_weight_bytes for subgraph in report.subgraphs):
        yield "total_weight_bytes is not the sum over subgraphs"
    held = {facts.storage[value] for values in facts.weights for value in values}
    for node, value in facts.reads:
        if node in facts.is_op and facts.is_weight(value) and facts.storage[value] not in held:
            yield f"{facts.graph.nodes[node].name} reads weights that no subgraph reads"
    if facts.parameters_read > facts.cost.parameters:
        yield f"{facts.parameters_read} parameters are read, and atlas.cost counts {facts.cost.parameters}"


def _weight_detail(facts: GraphFacts) -> str:
    return f"{facts.parameters_read:,} of {facts.cost.parameters:,} parameters read, {facts.weight_bytes:,} bytes"


def _unknown(facts: GraphFacts) -> Iterator[str]:
    report = facts.report
    for name, times in facts.cost.uncosted.items():
        yield f"{name} ({times}) has no formula"
    for subgraph in report.subgraphs:
        if subgraph.uncosted:
            yield f"{subgraph.node_id} holds {subgraph.uncosted} unknown operations"
    if "unknown" in report.operation_type_counts:
        yield f"{report.operation_type_counts['unknown']} operations are of no known kind"
    if sum(report.operation_type_counts.values()) != len(facts.ops):
        yield f"{sum(report.operation_type_counts.values())} operations by kind, {len(facts.ops)} in the graph"


def _stable(first: PartitionReport, second: PartitionReport) -> Iterator[str]:
    identity = attrgetter("node_id", "node_name", "nodes", "depends_on", "partition_reason")
    if len(first) != len(second):
        yield f"{len(first):,} subgraphs, then {len(second):,}"
    for a, b in zip(first.subgraphs, second.subgraphs, strict=False):
        if identity(a) != identity(b):
            yield f"{a.node_id} ({a.node_name}) is {b.node_id} ({b.node_name}) the second time"
    if first.boundaries != second.boundaries:
        yield "the borders differ"

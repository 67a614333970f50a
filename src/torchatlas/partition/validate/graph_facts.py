"""A partition -> the dependencies, bytes and weights of its subgraphs, worked out again without the partitioner."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

from torchatlas.analysis.cost import CostReport, cost
from torchatlas.graph import EdgeKind, NodeKind, Role
from torchatlas.graph.columns import EDGE_KINDS, KINDS, ROLES
from torchatlas.partition.report import PartitionReport

_WEIGHTS = {ROLES.index(role) for role in (Role.PARAMETER, Role.BUFFER, Role.CONSTANT)}


class GraphFacts:
    """What a report should say, followed value by value through the columns of its graph."""

    def __init__(self, report: PartitionReport) -> None:
        self.report, self.graph = report, report.graph
        columns = self.graph.columns
        op = KINDS.index(NodeKind.OP)
        self.ops = [node for node, kind in enumerate(columns["node_kind"].tolist()) if kind == op]
        self.is_op = set(self.ops)
        self.storage: list[int] = columns["value_storage"].tolist()
        self.producer: list[int] = columns["value_producer"].tolist()
        self.ids = [subgraph.node_id for subgraph in report.subgraphs]
        self.number = {node_id: at for at, node_id in enumerate(self.ids)}
        self.home = {op: at for at, subgraph in enumerate(report.subgraphs) for op in subgraph.ops}
        self.names = {name: at for at, subgraph in enumerate(report.subgraphs) for name in subgraph.nodes}

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
        return [[value for value in values[a:b] if value >= 0] for a, b in pairwise(ends)]

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
        operands = self.cost.counts.operands
        return [operands[layout].bytes for layout in self.graph.columns["value_layout"].tolist()]

    @cached_property
    def base(self) -> list[int]:
        """Per value the one whose memory it looks at, through views."""
        bases: list[int] = []
        for value, producer in enumerate(self.producer):
            looked_at = [other for other, _ in self.taken[producer]] if producer in self.is_view else []
            same = [other for other in looked_at if other < value and self.storage[other] == self.storage[value]]
            bases.append(bases[same[0]] if same else value)
        return bases

    def maker(self, value: int) -> int | None:
        """The operation that wrote a value's memory; None for what was there before."""
        node = self.producer[self.base[value]]
        return node if node in self.is_op else None

    def is_weight(self, value: int) -> bool:
        storage = self.storage[value]
        role = int(self.graph.columns["storage_role"][storage]) if storage >= 0 else -1
        return role in _WEIGHTS and self.maker(value) is None

    def total(self, values: Iterable[int]) -> int:
        """Bytes of distinct values. Those in one storage together count no more than the storage."""
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
        return [{self.number[other] for other in s.depends_on if other in self.number} for s in self.report.subgraphs]

    @cached_property
    def needs(self) -> list[set[int]]:
        """Per subgraph those that it depends on directly, by the edges of the graph and of torch.fx's."""
        needs: list[set[int]] = [set() for _ in self.report.subgraphs]
        columns = self.graph.columns
        edges = zip(columns["edge_source"].tolist(), columns["edge_target"].tolist(), strict=True)
        for source, target in edges:
            a, b = self.home.get(source), self.home.get(target)
            if a is not None and b is not None and a != b:
                needs[b].add(a)
        for a, b in self._fx_edges():
            if a != b:
                needs[b].add(a)
        return needs

    def _fx_edges(self) -> Iterator[tuple[int, int]]:
        """Pairs of subgraphs along torch.fx's own arguments: a Dropout that runs nothing is in no other graph."""
        if "fx_nodes" not in self.graph.metadata or self.report.origin is None:
            return
        behind: dict[Any, set[int]] = {}
        for node in self.report.origin.graph.nodes:
            before = {earlier for argument in node.all_input_nodes for earlier in behind[argument]}
            mine = self.names.get(node.name)
            behind[node] = before if mine is None else {mine}
            if mine is not None:
                yield from ((earlier, mine) for earlier in before)

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
            {other for other in claimed - needed if touched[at] & written[other] or written[at] & touched[other]}
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
        """Bytes from subgraph to subgraph, as the writers see them: by the edges that leave them and through views."""
        columns, data = self.graph.columns, EDGE_KINDS.index(EdgeKind.DATA)
        leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
        names = ("edge_source", "edge_target", "edge_value", "edge_kind")
        for source, target, value, kind in zip(*(columns[name].tolist() for name in names), strict=True):
            if kind == data:
                leaving[source].append((target, value))
        reads: list[tuple[int | None, int, int]] = []
        for writer in self.ops:
            if writer in self.is_view and all(self.maker(output) != writer for output in self.made[writer]):
                continue
            waiting, seen = [writer], {writer}
            while waiting:
                for target, value in leaving[waiting.pop()]:
                    if self.maker(value) != writer:
                        continue
                    if target not in self.is_view:
                        reads.append((writer, target, value))
                    elif target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return self._crossing(reads)

    def _crossing(self, reads: Iterable[tuple[int | None, int, int]]) -> dict[tuple[int, int], int]:
        values: dict[tuple[int, int], set[int]] = defaultdict(set)
        for writer, reader, value in reads:
            a, b = self.home.get(writer) if writer is not None else None, self.home.get(reader)
            if a is not None and b is not None and a != b and not self.is_weight(value):
                values[a, b].add(value)
        return {pair: self.total(distinct) for pair, distinct in values.items()}

    @cached_property
    def inputs(self) -> list[int]:
        """Per subgraph the bytes of activations that it takes from outside."""
        values: list[set[int]] = [set() for _ in self.report.subgraphs]
        for node, value in self.reads:
            at, writer = self.home.get(node), self.maker(value)
            if at is not None and not self.is_weight(value) and (writer is None or self.home.get(writer) != at):
                values[at].add(value)
        return [self.total(own) for own in values]

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
        return [self.total(own) for own in values]

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
        columns, operands = self.graph.columns, self.cost.counts.operands
        numels: dict[int, int] = {}
        for value in set().union(*self.weights):
            base = self.base[value]
            if columns["storage_role"][self.storage[base]] == ROLES.index(Role.PARAMETER):
                numel = operands[int(columns["value_layout"][base])].numel
                numels[self.storage[base]] = max(numels.get(self.storage[base], 0), numel)
        return sum(numels.values())

    @property
    def weight_bytes(self) -> int:
        return sum(self.total(own) for own in self.weights)

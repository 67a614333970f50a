"""A graph, a torch.fx or traced model, a file or a plain model -> a PartitionReport."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from torchatlas.analysis.autograd_bytes import recorded_with_autograd
from torchatlas.analysis.devices import Device, device_named
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.partition.acyclic_groups import of_nodes
from torchatlas.partition.front_ends import opened
from torchatlas.partition.fusion import Fusion
from torchatlas.partition.report import Attempt, Boundary, PartitionReport
from torchatlas.partition.strategies import as_asked, by_module, by_operation
from torchatlas.partition.subgraphs import Describer
from torchatlas.partition.traffic import Ledger, ledger, traffic
from torchatlas.partition.unit_graph import Units
from torchatlas.registry import check_choice
from torchatlas.units import byte_limit

STRATEGIES = ("fusion", "op", "module")
_WHY_APART = {
    "op": "each operation is a subgraph",
    "module": "they are calls of different modules",
    "groups": "they are in different groups, as asked",
}


class GraphPartitioner:
    """Cuts computations into subgraphs.

    Args:
        strategy: "fusion" (what one kernel can compute, by the bytes that need not move), "op" (each operation by
            itself) or "module" (calls of modules `depth` levels down).
        device: The profile that bounds and times are for, as for `atlas.cost`; None is one generic accelerator.
        groups: Subgraphs of your own instead of a strategy: names of nodes, by name of the subgraph or as lists.
        depth: How many levels down the strategy "module" cuts.
        on_chip_bytes: How much of an intermediate result one kernel can hold; None is the device's cache.
        gradients: Whether a plain model runs with autograd on, which copies what operators in place overwrite; None
            leaves it to the mode of the model: in eval mode it is partitioned as inference.
    Raises:
        InvalidInputError: An argument is none of these, or two contradict each other.
        UnknownNameError: There is no device profile of that name.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> report = atlas.GraphPartitioner().partition(model, torch.ones(1, 4))
        >>> [subgraph.pattern for subgraph in report]
        ['matmul+activation', 'matmul']
    """

    @explains_arguments
    def __init__(
        self,
        strategy: str = "fusion",
        device: Device | str | None = None,
        *,
        groups: Mapping[str, Iterable[str]] | Sequence[Iterable[str]] | None = None,
        depth: int = 2,
        on_chip_bytes: float | str | None = None,
        gradients: bool | None = None,
    ) -> None:
        check_choice("strategy", strategy, STRATEGIES)
        if not isinstance(depth, int) or depth < 1:
            raise InvalidInputError(f"depth={depth!r}: modules are a whole number of levels down, at least 1.")
        self.strategy, self.groups, self.depth, self.gradients = strategy, groups, depth, gradients
        self.device = device_named(device)
        self.on_chip_bytes = (
            self.device.cache_bytes if on_chip_bytes is None else byte_limit(on_chip_bytes, "on_chip_bytes", least=0)
        )

    def __repr__(self) -> str:
        strategy = self.strategy if self.groups is None else "groups"
        return f"<GraphPartitioner by {strategy}, for {clean(self.device.name)!r}>"

    @explains_arguments
    def partition(self, x: Any, /, *args: Any, **kwargs: Any) -> PartitionReport:
        """Cut up a computation.

        Args:
            x: A torch.fx.GraphModule after ShapeProp, a TracedModel, a Graph, or the path of a saved one; or a plain
                model with example inputs, which is traced by torch.fx, else by torch.export, else run: the report says
                which.
            *args: Example inputs of a plain model.
            **kwargs: Those that are passed by keyword.
        Returns:
            A PartitionReport: every operation is in exactly one subgraph. Print it.
        Raises:
            AnalysisError: There is no operation to cut up.
            InvalidModelError: `x` is none of these.
            InvalidInputError: A plain model comes without inputs, or a GraphModule without shapes.
        """
        units, front_end, origin, attempts = opened(x, args, kwargs, self.gradients)
        op_ledger = ledger(units.graph, self.device)
        if not op_ledger.is_op.any() and not len(units):
            raise AnalysisError("There is no operation in this graph, so there is nothing to cut.")
        return self._report(units, op_ledger, front_end, origin, attempts)

    def _report(
        self, units: Units, ledger: Ledger, front_end: str, origin: Any, attempts: tuple[Attempt, ...]
    ) -> PartitionReport:
        groups, names, fusion, glue = self._groups(units, ledger)
        group = of_nodes(units, groups)
        moved = traffic(ledger, group, len(groups))
        strategy = self.strategy if self.groups is None else "groups"
        reasons = dict.fromkeys(moved.crossing, _WHY_APART.get(strategy, ""))
        if fusion is not None:
            of = fusion.groups.group
            reasons = {(a, b): fusion.why_not(of[groups[a][0]], of[groups[b][0]]) for a, b in moved.crossing}
        subgraphs = Describer(units, ledger, groups, moved, fusion, reasons, names, glue).subgraphs()
        ids = [subgraph.node_id for subgraph in subgraphs]
        work = np.array([subgraph.flops + subgraph.elementwise_flops for subgraph in subgraphs], float)
        bytes_ = np.array([subgraph.traffic_bytes for subgraph in subgraphs], float)
        moves = bytes_ > 0
        intensity = work[moves] / bytes_[moves]
        operations, graph = ledger.is_op & (units.of_op >= 0), units.graph
        types = [str(op.type) for op in graph.tables.operations]
        kinds = Counter(
            types[graph.columns["node_operation"][op]] if ledger.is_known[op] else "unknown"
            for op in np.flatnonzero(operations).tolist()
        )
        return PartitionReport(
            strategy=strategy,
            device=self.device.name,
            device_source=self.device.source,
            front_end=front_end,
            attempts=attempts,
            with_autograd=recorded_with_autograd(graph),
            total_subgraphs=len(subgraphs),
            total_flops=sum(subgraph.flops for subgraph in subgraphs),
            total_macs=sum(subgraph.macs for subgraph in subgraphs),
            total_elementwise_flops=sum(subgraph.elementwise_flops for subgraph in subgraphs),
            total_input_bytes=int(moved.inputs.sum()),
            total_output_bytes=int(moved.outputs.sum()),
            total_weight_bytes=int(moved.weights.sum()),
            saved_for_backward_bytes=int(moved.for_backward.sum()),
            total_bytes=sum(subgraph.traffic_bytes for subgraph in subgraphs),
            unfused_bytes=sum(subgraph.unfused_bytes for subgraph in subgraphs),
            total_kernels=sum(subgraph.kernels for subgraph in subgraphs),
            unfused_kernels=int((operations & ~ledger.is_idle).sum()),
            average_arithmetic_intensity=float(intensity.mean()) if len(intensity) else None,
            weighted_arithmetic_intensity=float((work[moves] * intensity).sum() / work[moves].sum())
            if work[moves].sum()
            else None,
            operation_type_counts=dict(kinds.most_common()),
            subgraph_type_counts=dict(Counter(str(subgraph.operation_type) for subgraph in subgraphs).most_common()),
            uncosted=dict(ledger.counts.uncosted),
            subgraphs=tuple(subgraphs),
            boundaries=tuple(
                Boundary(ids[a], ids[b], size, reasons[a, b]) for (a, b), size in sorted(moved.crossing.items())
            ),
            sizes=dict(ledger.counts.sizes),
            notes=tuple(graph.notes),
            graph=graph,
            origin=origin,
        )

    def _groups(
        self, units: Units, ledger: Ledger
    ) -> tuple[list[list[int]], dict[int, str], Fusion | None, list[bool] | None]:
        if self.groups is not None:
            groups, names = as_asked(units, self.groups)
            return groups, names, None, None
        if self.strategy == "op":
            groups, glue = by_operation(units, ledger)
            return groups, {}, None, glue
        if self.strategy == "module":
            return by_module(units, self.depth), {}, None, None
        fusion = Fusion(units, ledger, self.on_chip_bytes)
        groups = fusion.groups.in_order()
        return groups, {}, fusion, [fusion.runs_nothing(group) for group in groups]

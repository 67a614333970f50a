"""What reports of a partition are called in branes-ai/graphs, for people who come from there.

Each name means here what it means there, or it is absent; docs/coming-from.md lists all of them. Everything is derived
from the fields of the reports: nothing else in this package uses these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from torchatlas.escapes import clean
from torchatlas.graph import OperationType

if TYPE_CHECKING:
    from torchatlas.partition.concurrency import ConcurrencyReport
    from torchatlas.partition.report import Reason, Subgraph

_CHANNELS_APART = {
    OperationType.CONVOLUTION,
    OperationType.MATMUL,
    OperationType.POOLING,
    OperationType.POINTWISE,
    OperationType.EMBEDDING,
}
_THREADS = ((1_000, "<1K"), (10_000, "1K-10K"), (100_000, "10K-100K"), (1_000_000, "100K-1M"))


class ParallelismNames:
    """Names of ParallelismDescriptor."""

    __slots__ = ()
    if TYPE_CHECKING:  # fields of Parallelism
        operation_type: OperationType
        batch: int
        channels: int
        spatial: int

    @property
    def can_split_batch(self) -> bool:
        """Whether there is more than one sample."""
        return self.batch > 1

    @property
    def can_split_spatial(self) -> bool:
        """Whether there is more than one position."""
        return self.spatial > 1

    @property
    def can_split_channels(self) -> bool:
        """Whether the channels of the result can be computed apart from each other.

        So it is with products, convolutions (depthwise ones most of all), pools and pointwise work; a norm or a softmax
        over the channels needs all of them.
        """
        return self.channels > 1 and self.operation_type in _CHANNELS_APART


class SubgraphNames:
    """Names of SubgraphDescriptor."""

    if TYPE_CHECKING:  # fields of Subgraph
        node_id: str
        nodes: tuple[str, ...]
        ops: tuple[int, ...]
        pattern: str
        flops: int
        macs: int
        unfused_bytes: int
        traffic_bytes: int
        partition_reason: Reason

    @property
    def subgraph_id(self) -> int:
        """The place of the subgraph in the report."""
        return int(self.node_id[1:])

    @property
    def node_names(self) -> list[str]:
        """Another name of `nodes`."""
        return list(self.nodes)

    @property
    def node_ids(self) -> list[str]:
        """Another name of `nodes`: names identify nodes here."""
        return list(self.nodes)

    @property
    def fusion_pattern(self) -> str:
        """Another name of `pattern`."""
        return self.pattern

    @property
    def num_operators(self) -> int:
        """How many operators it has."""
        return len(self.ops)

    @property
    def total_flops(self) -> int:
        """Another name of `flops`."""
        return self.flops

    @property
    def total_macs(self) -> int:
        """Another name of `macs`."""
        return self.macs

    @property
    def internal_bytes(self) -> int:
        """What fusing keeps on the chip: reads and writes that need not happen."""
        return self.unfused_bytes - self.traffic_bytes

    def data_movement_reduction(self) -> float:
        """The share of the unfused traffic that fusing avoids."""
        return self.internal_bytes / self.unfused_bytes if self.unfused_bytes else 0.0

    def partition_reasoning_summary(self) -> str:
        """Why it ends where it does, in words."""
        return clean(f"Partition reason: {self.partition_reason}")


class ReportNames:
    """Names of PartitionReport. Its fields are set once, but for those that scripts of branes-ai/graphs assign."""

    if TYPE_CHECKING:  # fields of PartitionReport
        subgraphs: tuple[Subgraph, ...]
        operation_type_counts: dict[str, int]
        total_input_bytes: int
        total_output_bytes: int
        total_weight_bytes: int
        total_bytes: int
        unfused_bytes: int

    _ASSIGNABLE = frozenset({"concurrency"})
    concurrency: ConcurrencyReport | None = None  # yours to set: report.concurrency = analyzer.analyze(report)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._ASSIGNABLE and (name in vars(self) or name not in type(self).__dataclass_fields__):  # type: ignore[attr-defined]
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super().__setattr__(name, value)

    @cached_property
    def critical_path_subgraphs(self) -> list[str]:
        """The ids of the subgraphs on the critical path by arithmetic."""
        from torchatlas.partition.concurrency import ConcurrencyAnalyzer
        from torchatlas.partition.report import PartitionReport

        return list(ConcurrencyAnalyzer(workers=()).analyze(cast(PartitionReport, self)).critical_path)

    @property
    def fused_subgraphs(self) -> tuple[Subgraph, ...]:
        """Another name of `subgraphs`."""
        return self.subgraphs

    @property
    def total_memory_traffic(self) -> int:
        """Inputs, outputs and weights of all subgraphs. `total_bytes` is what moves, by the formulas of cost."""
        return self.total_input_bytes + self.total_output_bytes + self.total_weight_bytes

    @property
    def total_memory_traffic_unfused(self) -> int:
        """Another name of `unfused_bytes`."""
        return self.unfused_bytes

    @property
    def data_movement_reduction(self) -> float:
        """The share of the unfused traffic that fusing avoids."""
        return 1 - self.total_bytes / self.unfused_bytes if self.unfused_bytes else 0.0

    @property
    def original_operators(self) -> int:
        """How many operators there are in all."""
        return sum(self.operation_type_counts.values())

    @property
    def avg_fusion_size(self) -> float:
        """Operators per subgraph."""
        return self.original_operators / len(self.subgraphs) if self.subgraphs else 0.0

    @property
    def max_fusion_size(self) -> int:
        """The most operators of a subgraph."""
        return max((len(subgraph.ops) for subgraph in self.subgraphs), default=0)

    @property
    def min_arithmetic_intensity(self) -> float | None:
        """The smallest arithmetic intensity of a subgraph; None when nothing moves."""
        return min(_intensities(self.subgraphs), default=None)

    @property
    def max_arithmetic_intensity(self) -> float | None:
        """The largest arithmetic intensity of a subgraph; None when nothing moves."""
        return max(_intensities(self.subgraphs), default=None)

    @property
    def fusion_pattern_counts(self) -> dict[str, int]:
        """The number of subgraphs with each pattern."""
        return dict(Counter(subgraph.pattern for subgraph in self.subgraphs).most_common())

    @property
    def bottleneck_distribution(self) -> dict[str, int]:
        """The number of subgraphs by what limits them."""
        return dict(Counter(subgraph.recommended_bottleneck.value for subgraph in self.subgraphs).most_common())

    @property
    def partition_reason_distribution(self) -> dict[str, int]:
        """The number of subgraphs by the reason why they end."""
        return dict(Counter(str(subgraph.partition_reason) for subgraph in self.subgraphs).most_common())

    @property
    def parallelism_distribution(self) -> dict[str, int]:
        """The number of subgraphs by how many results could be computed at the same time."""
        counts = dict.fromkeys([name for _, name in _THREADS] + [">1M"], 0)
        for subgraph in self.subgraphs:
            if subgraph.parallelism is not None:
                threads = subgraph.parallelism.total_threads
                counts[next((name for most, name in _THREADS if threads < most), ">1M")] += 1
        return counts

    def summary_stats(self) -> str:
        """The printed report."""
        return str(self)


def _intensities(subgraphs: Iterable[Subgraph]) -> list[float]:
    return [subgraph.arithmetic_intensity for subgraph in subgraphs if subgraph.arithmetic_intensity is not None]


class ConcurrencyNames:
    """Names of ConcurrencyDescriptor."""

    if TYPE_CHECKING:  # fields of ConcurrencyReport
        stages: tuple[tuple[str, ...], ...]
        slack: dict[str, float]
        batch_parallelism: int

    @property
    def total_subgraphs(self) -> int:
        """All subgraphs, those that take no stage too."""
        return len(self.slack)

    @property
    def independent_subgraphs(self) -> int:
        """Those that share a stage with others."""
        return sum(len(stage) for stage in self.stages if len(stage) > 1)

    @property
    def sequential_subgraphs(self) -> int:
        """Those that have a stage of their own."""
        return sum(len(stage) == 1 for stage in self.stages)

    @property
    def batch_size(self) -> int:
        """Another name of `batch_parallelism`."""
        return self.batch_parallelism

    @property
    def explanation(self) -> str:
        """The printed report."""
        return str(self)

"""The report of a partition: its subgraphs, what they cost and depend on, and why they end where they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchatlas.analysis.autograd_bytes import autograd_text
from torchatlas.analysis.cost import caveats, ratio_text
from torchatlas.analysis.reports import Report, fields_as_json
from torchatlas.analysis.roofline import Bound
from torchatlas.analysis.totals import run_times
from torchatlas.errors import InvalidInputError, NodeNotFoundError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, OperationType
from torchatlas.graph.shown import Shown
from torchatlas.partition.branes_names import ParallelismNames, ReportNames, SubgraphNames
from torchatlas.registry import did_you_mean
from torchatlas.sections import Lines, Section, Table, text_of
from torchatlas.units import format_bytes, format_count, format_flops, format_seconds

if TYPE_CHECKING:
    from torchatlas.partition.extract import Pieces


class Reason(str):
    """Why a subgraph ends, as a sentence. `.value` is the sentence too: in branes-ai/graphs it was an enum."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Parallelism(ParallelismNames, Report):
    """How the main operation of a subgraph could be divided among workers."""

    operation_type: OperationType
    batch: int  # samples
    channels: int  # of the result
    spatial: int  # positions: height x width, or the length of a sequence
    total_threads: int  # results that could be computed at the same time
    is_depthwise: bool  # a convolution with a group per channel
    is_grouped: bool  # a convolution with groups
    num_groups: int  # how many
    vectorizable_dimension: int | None  # of its result: the one whose elements lie side by side
    vectorizable_size: int  # how many elements lie side by side


@dataclass(frozen=True, slots=True)
class Boundary(Report):
    """What one subgraph hands to another, and why the two are not one."""

    source: str
    target: str
    bytes: int
    reason: str


@dataclass(frozen=True, repr=False)
class Subgraph(SubgraphNames, Report):
    """Some operations that go together. Sizes are in bytes, times in seconds at best on the report's device."""

    node_id: str  # the same from run to run
    node_name: str  # of the node that does most of the work
    operation_type: OperationType  # of its main operation
    pattern: str  # what kinds of operation it holds: convolution+norm+activation
    nodes: tuple[str, ...]  # by name, in execution order: of torch.fx's graph if that was partitioned
    ops: tuple[int, ...] = field(repr=False)  # the ids of its operations in the report's graph
    flops: int  # of matmul-like work: two per multiply-add
    macs: int
    elementwise_flops: int
    uncosted: int  # operations among them without a formula: with any, all figures are "at least"
    depends_on: tuple[str, ...]  # ids of the subgraphs whose results it takes
    total_input_bytes: int  # activations that come from outside
    total_output_bytes: int  # what it writes and does not only read itself
    total_weight_bytes: int  # parameters, buffers and constants, whole
    saved_for_backward_bytes: int  # results that only backward needs; in no other figure but the traffic
    traffic_bytes: int  # what moves while it runs
    unfused_bytes: int  # what would move if each operation were a kernel of its own
    kernels: int
    arithmetic_intensity: float | None  # all arithmetic per byte of traffic; None when nothing moves
    parallelism: Parallelism | None
    recommended_bottleneck: Bound  # what limits it on the device
    seconds: float
    time_ns: int | None  # as measured; None where some operation was not timed
    partition_reason: Reason  # why it ends
    is_glue: bool = False  # it joins operations and is none: it takes no stage when stages are counted

    def _headline(self) -> str:
        work = f"{format_flops(self.flops)}, {format_bytes(self.traffic_bytes)} moved"
        return clean(f"{self.node_id} {self.node_name}: {self.pattern}, {work}")


@dataclass(frozen=True)
class Attempt(Report):
    """A front end that did not take a model, and why."""

    front_end: str
    reason: str


@dataclass(eq=False, repr=False)
class PartitionReport(ReportNames, Shown):
    """A partition. Every operation is in exactly one subgraph; parts sum to the totals. Fields are set once."""

    strategy: str
    device: str
    device_source: str = field(repr=False)  # where the device's figures come from
    front_end: str  # where the graph comes from: fx, export, run or file
    attempts: tuple[Attempt, ...]  # what was tried before that
    with_autograd: bool  # recorded with autograd on: bytes include the copies that it makes for backward
    total_subgraphs: int  # how many
    total_flops: int
    total_macs: int
    total_elementwise_flops: int
    total_input_bytes: int  # summed over subgraphs, as are the next two
    total_output_bytes: int
    total_weight_bytes: int
    saved_for_backward_bytes: int
    total_bytes: int  # that move, with this partition
    unfused_bytes: int  # that would move with a kernel per operation: the baseline
    total_kernels: int
    unfused_kernels: int
    average_arithmetic_intensity: float | None  # the plain mean over subgraphs that move bytes
    weighted_arithmetic_intensity: float | None  # each subgraph weighted by its arithmetic
    operation_type_counts: dict[str, int]  # of operations; those without a formula are "unknown"
    subgraph_type_counts: dict[str, int]  # subgraphs by their main category
    uncosted: dict[str, int]
    subgraphs: tuple[Subgraph, ...] = field(repr=False)  # in an order in which they can run
    boundaries: tuple[Boundary, ...] = field(repr=False)
    sizes: dict[str, int]  # what symbolic sizes were taken to be
    notes: tuple[str, ...] = field(repr=False)
    graph: Graph = field(repr=False)
    origin: Any = field(repr=False)  # what was partitioned, if it can run: a model that was recorded can

    @property
    def at_least(self) -> bool:
        """Whether some operations have no formula, so that there may be more."""
        return bool(self.uncosted)

    @property
    def total_seconds(self) -> float:
        """At best, one subgraph after the other."""
        return sum(subgraph.seconds for subgraph in self.subgraphs)

    def __len__(self) -> int:
        """How many subgraphs there are."""
        return len(self.subgraphs)

    def __iter__(self) -> Iterator[Subgraph]:
        """The subgraphs, in execution order."""
        return iter(self.subgraphs)

    def __getitem__(self, name: str | int) -> Subgraph:
        """A subgraph by its id, its name, the name of one of its nodes, or its place."""
        if isinstance(name, int):
            return self.subgraphs[name]
        for subgraph in self.subgraphs:
            if name in (subgraph.node_id, subgraph.node_name) or name in subgraph.nodes:
                return subgraph
        known = [text for subgraph in self.subgraphs for text in (subgraph.node_id, *subgraph.nodes)]
        raise NodeNotFoundError(f"no subgraph is or holds {name!r}{did_you_mean(name, known)}")

    def top(self, number: int = 5, by: str = "flops") -> list[Subgraph]:
        """The subgraphs with most of something.

        Args:
            number: How many.
            by: "flops", "traffic_bytes", "seconds", "elementwise_flops" or another figure of a subgraph.
        Returns:
            The subgraphs, the largest first.
        Raises:
            InvalidInputError: A subgraph has no such figure.
        """
        if by not in Subgraph.__dataclass_fields__ or not isinstance(getattr(self.subgraphs[0], by, 0), (int, float)):
            raise InvalidInputError(f"top(by={by!r}): a number of a subgraph, such as flops, traffic_bytes or seconds.")
        return sorted(self.subgraphs, key=lambda subgraph: -getattr(subgraph, by))[:number]

    def extract(self, origin: Any = None) -> Pieces:
        """Each subgraph as a module that runs, and the whole put together of them again.

        A model that was recorded runs once more for it, and its pieces take inputs that lead along the recorded path.

        Args:
            origin: The GraphModule or TracedModel to cut, if it is not at hand: for a report made from a file.
        Returns:
            The Pieces.
        Raises:
            NotAvailableError: Nothing that runs is at hand.
        """
        from torchatlas.partition.extract import extract

        return extract(self, self.origin if origin is None else origin)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it, without the graph and the model."""
        fields = fields_as_json(self, leave_out=("graph", "origin"))
        last = {name: fields.pop(name) for name in ("attempts", "notes", "subgraphs", "boundaries")}
        return fields | {"at_least": self.at_least, "times": run_times(self.graph)} | last

    def _sections(self) -> Iterator[Section]:
        return report_sections(self)


def report_text(report: PartitionReport, *, top: int = 10) -> str:
    """The report as plain text; see `report_sections`."""
    return text_of(report_sections(report, top=top))


def report_sections(report: PartitionReport, *, top: int = 10) -> Iterator[Section]:
    """Totals, what fusion saves, kinds of operation, the `top` subgraphs by FLOPs."""
    sign = "at least " if report.at_least else ""
    lines = [
        f"{report.total_subgraphs:,} subgraphs by {report.strategy}, from {report.front_end}",
        f"{sign}{format_count(report.total_macs)} multiply-adds = {format_flops(report.total_flops)}, "
        f"and {format_flops(report.total_elementwise_flops)} of other arithmetic",
        f"{sign}{format_bytes(report.total_bytes)} moved by {report.total_kernels:,} kernels; "
        f"{format_bytes(report.unfused_bytes)} by {report.unfused_kernels:,} if each operation is one",
        f"average arithmetic intensity {ratio_text(report.average_arithmetic_intensity)} FLOPs per byte, "
        "the plain mean over subgraphs",
        f"weighted arithmetic intensity {ratio_text(report.weighted_arithmetic_intensity)} FLOPs per byte, "
        "each subgraph by its arithmetic",
        f"at best {format_seconds(report.total_seconds)} on {report.device!r} ({report.device_source})",
    ]
    lines.append(autograd_text(report.with_autograd))
    if report.saved_for_backward_bytes:
        lines.append(f"{format_bytes(report.saved_for_backward_bytes)} of results that only backward needs")
    lines += caveats(report.sizes, report.uncosted)
    lines += [f"{attempt.front_end} did not work: {attempt.reason}" for attempt in report.attempts]
    yield Lines(lines, report.notes)
    kinds = [[kind, f"{count:,}"] for kind, count in report.operation_type_counts.items()]
    yield Table(["kind of operation", ">operations"], kinds)
    if report.subgraphs:
        yield _subgraphs(report.top(top))


def _subgraphs(subgraphs: list[Subgraph]) -> Table:
    rows = [
        [
            subgraph.node_id,
            subgraph.node_name,
            subgraph.pattern,
            format_flops(subgraph.flops),
            format_bytes(subgraph.traffic_bytes),
            ratio_text(subgraph.arithmetic_intensity),
            subgraph.recommended_bottleneck.value,
            format_seconds(subgraph.seconds),
        ]
        for subgraph in subgraphs
    ]
    headings = ["", "most FLOPs", "holds", ">FLOPs", ">moved", ">FLOPs/B", "limited by", ">at best"]
    return Table(headings, rows)

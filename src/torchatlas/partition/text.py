"""Partition reports -> plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchatlas.analysis.cost import caveats, ratio_text
from torchatlas.analysis.inference import autograd_text
from torchatlas.tables import text_lines, text_table
from torchatlas.units import format_bytes, format_count, format_flops, format_seconds

if TYPE_CHECKING:
    from torchatlas.partition.report import PartitionReport, Subgraph


def report_text(report: PartitionReport, *, top: int = 10) -> str:
    """The report as plain text: totals, what fusion saves, kinds of operation, the `top` subgraphs by FLOPs."""
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
    lines += [f"{one.front_end} did not work: {one.reason}" for one in report.attempts]
    lines += [f"note: {note}" for note in report.notes]
    kinds = [[kind, f"{count:,}"] for kind, count in report.operation_type_counts.items()]
    parts = [text_lines(lines), text_table(["kind of operation", ">operations"], kinds)]
    if report.subgraphs:
        parts.append(_subgraphs(report.top(top)))
    return "\n\n".join(parts)


def _subgraphs(listed: list[Subgraph]) -> str:
    rows = [
        [
            one.node_id,
            one.node_name,
            one.pattern,
            format_flops(one.flops),
            format_bytes(one.traffic_bytes),
            ratio_text(one.arithmetic_intensity),
            one.recommended_bottleneck.value,
            format_seconds(one.seconds),
        ]
        for one in listed
    ]
    headings = ["", "most FLOPs", "holds", ">FLOPs", ">moved", ">FLOPs/B", "limited by", ">at best"]
    return text_table(headings, rows)

"""Rows of the module table -> the cells that text, notebooks and bars show. Empty where nothing is to be said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchatlas.analysis.module_figures import Shape
from torchatlas.escapes import clean
from torchatlas.tables import Column
from torchatlas.units import format_bytes, format_count, format_ns

if TYPE_CHECKING:
    from torchatlas.render.module_table import ModuleRow, ModuleTable


def columns(table: ModuleTable) -> list[Column]:
    """The columns that say something about this graph. The least asked for leave first where there is no room."""
    rows, totals = table.rows, table.totals
    several = len(table.phases) > 1
    texts = [
        Column("module", list(map(indented, rows)), right=False, readable=32),
        Column("type", list(map(module_type, rows)), right=False, readable=18, leaves=4, style="cyan"),
        Column("output shape", list(map(output_shape, rows)), right=False, readable=20, leaves=3),
    ]
    columns = [column for column in texts if any(column.cells)] + [Column("params", list(map(parameters, rows)))]
    if totals.trained is not None and totals.trained != totals.parameters:
        columns.append(Column("trained", list(map(trained, rows)), leaves=7))
    if totals.macs is not None:
        if several:
            columns.append(Column("fwd MACs", list(map(forward_macs, rows)), leaves=6))
        columns.append(Column("all MACs" if several else "MACs", list(map(macs, rows)), leaves=1))
    if totals.time_ns is not None:
        columns.append(Column("time", list(map(time, rows)), leaves=2))
    if totals.allocated_bytes is not None:
        columns.append(Column("allocated", list(map(allocated, rows)), leaves=5))
    if totals.kept_bytes is not None:
        columns.append(Column("kept", list(map(kept, rows)), leaves=8))
    return columns


def counted_columns(table: ModuleTable) -> list[Column]:
    """The columns of a summary: calls and operations, and each module's share of the time."""
    rows, whole_ns = table.rows, table.totals.time_ns
    columns = [
        Column("module", list(map(indented, rows)), right=False, readable=40),
        Column("type", list(map(module_type, rows)), right=False, readable=40, leaves=3, style="cyan"),
        Column("calls", [f"{row.calls:,}" for row in rows], leaves=6),
        Column("ops", [f"{row.operations:,}" for row in rows]),
    ]
    if whole_ns is not None:
        columns.append(Column("time", list(map(time, rows)), leaves=1))
        columns.append(Column("share", [share(row.total.time_ns, whole_ns) for row in rows], leaves=2))
    columns.append(Column("params", list(map(parameters, rows)), leaves=4))
    if table.totals.allocated_bytes is not None:
        columns.append(Column("allocated", list(map(allocated, rows)), leaves=5))
    return columns


def footer(table: ModuleTable) -> Iterator[str]:
    """The totals in words, a line each; what is unknown has none."""
    totals, root = table.totals, table.rows[0]
    gradients = ""
    if totals.trained is not None and totals.parameters:
        got = "all" if totals.trained == totals.parameters else f"{totals.trained:,}"
        gradients = f", {got} of them got a gradient"
    yield f"parameters: {totals.parameters:,} ({format_bytes(table.parameter_bytes)}){gradients}"
    if totals.macs is not None:
        forward = f"{forward_macs(root) or 0} forward, {macs(root) or 0} in all phases"
        yield "MACs: " + (forward if len(table.phases) > 1 else macs(root) or "0")
    if totals.time_ns is not None:
        yield f"time: {table.times}"
    if table.input_bytes is not None:
        yield f"inputs: {format_bytes(table.input_bytes)}"
    if totals.allocated_bytes is not None:
        for_backward = "" if totals.kept_bytes is None else f", {kept(root) or '0 B'} kept for backward"
        yield f"allocated: {allocated(root) or '0 B'} in all{for_backward}"
    if table.peak_bytes is not None:
        yield f"peak memory: {at_least(format_bytes(table.peak_bytes), table.peak_at_least)}"


# -- cells -------------------------------------------------------------------------------------------------------------


def label(row: ModuleRow) -> str:
    """The name, with how many modules it stands for and how many deeper ones have no row."""
    several = f"  ×{row.count:,}" if row.count > 1 and row.type else ""
    return clean(row.label) + several + (f"  +{row.hidden:,}" if row.hidden else "")


def indented(row: ModuleRow) -> str:
    return "  " * row.depth + label(row)


def module_type(row: ModuleRow) -> str:
    return clean(row.type)


def shape_text(shape: Shape) -> str:
    return f"[{', '.join(clean(str(size)) for size in shape)}]"


def output_shape(row: ModuleRow) -> str:
    if not row.outputs:
        return ""
    more, calls = len(row.outputs) - 1, row.calls // row.count
    return shape_text(row.outputs[0]) + (f" +{more:,}" if more else "") + (f" ×{calls:,}" if calls > 1 else "")


def parameters(row: ModuleRow) -> str:
    return format_count(row.total.parameters) if row.total.parameters else ""


def trained(row: ModuleRow) -> str:
    return format_count(row.total.trained) if row.total.parameters else ""


def macs(row: ModuleRow) -> str:
    return at_least(format_count(row.total.macs), row.total.uncosted) if row.operations else ""


def forward_macs(row: ModuleRow) -> str:
    return at_least(format_count(row.total.forward_macs), row.total.forward_uncosted) if row.operations else ""


def time(row: ModuleRow) -> str:
    time_ns = row.total.time_ns
    return at_least(format_ns(time_ns), time_ns is not None and row.total.untimed) if row.operations else ""


def allocated(row: ModuleRow) -> str:
    return _bytes(row.total.allocated_bytes, row.total.unsized)


def kept(row: ModuleRow) -> str:
    return _bytes(row.total.kept_bytes, row.total.unsized)


def _bytes(size: int | None, unsized: int) -> str:
    return at_least(format_bytes(size), unsized) if size or unsized else ""


def at_least(text: str, missing: int) -> str:
    """The figure of a sum; `missing` parts of it are unknown."""
    return f"≥ {text}" if missing else text


def share(part: int | None, whole: int | None) -> str:
    return "" if part is None or not whole else f"{100 * part / whole:.1f} %"

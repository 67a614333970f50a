"""A MemoryReport as tables, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchatlas.analysis.storages import CATEGORIES
from torchatlas.graph.names import short_line
from torchatlas.sections import Lines, Section, Table
from torchatlas.units import format_bytes, format_ns

if TYPE_CHECKING:
    from torchatlas.analysis.memory import LineMemory, MemoryReport, ModuleMemory, TensorMemory

_SMALLEST_SHARE = 0.01  # of the peak, that a module must hold to get a row
_MOST_MODULES = 24
_DEEPEST = 2
_MOST_LINES = 10


def memory_sections(report: MemoryReport) -> Iterator[Section]:
    """The peak, what it is made of, and what is held longest."""
    node = report.node
    head = [
        f"peak {_size(report.peak_bytes, report.at_least)} ({report.peak_bytes:,} bytes)",
        f"reached in {node.name} ({node.phase}, node {node.id:,} of {len(report.graph):,})",
    ]
    if node.source is not None:
        head.append(f"{node.source}: {node.source.text.strip()}")
    if len(report.peak_by_phase) > 1:
        peaks = (f"{phase} {_size(size, report.at_least)}" for phase, size in report.peak_by_phase.items())
        head.append(f"the most in each phase: {', '.join(peaks)}")
    yield Lines(head)
    yield _categories(report)
    yield from _modules(report)
    yield _lines(report)
    yield from _tensors(report, report.largest, held=False)
    yield from _tensors(report, report.longest_held, held=True)
    yield Lines([], report.notes)


def _categories(report: MemoryReport) -> Table:
    sizes = sorted(report.by_category.items(), key=lambda item: -item[1])
    unknown = report.unknown_by_category
    rows = [
        [CATEGORIES[key], _size(size, _at_least(report, unknown[key])), _share(report, size)]
        for key, size in sizes
        if size or unknown[key]
    ]
    return Table(["what the peak is made of", ">bytes", ">share"], rows)


def _modules(report: MemoryReport) -> Iterator[Table]:
    """The tree, without what is small; where there is still too much, only the largest."""
    least = _SMALLEST_SHARE * report.peak_bytes
    shown = [row for row in report.by_module.values() if row.path.count(".") < _DEEPEST and row.bytes >= least]
    largest = {row.path for row in sorted(shown, key=lambda row: -row.bytes)[:_MOST_MODULES]}
    rows = [[row.path or "(all)", row.type, *_figures(report, row)] for row in shown if row.path in largest]
    if rows:
        yield Table(["module, with all inside", "type", ">bytes", ">share", "mostly"], rows)


def _lines(report: MemoryReport) -> Table:
    rows = []
    for row in report.by_line[:_MOST_LINES]:
        where = short_line(row.source) or "(there before)"
        text = "" if row.source is None else row.source.text.strip()
        rows.append([where, text, *_figures(report, row)])
    return Table(["line that made it", "", ">bytes", ">share", "mostly"], rows)


def _tensors(report: MemoryReport, tensors: Sequence[TensorMemory], *, held: bool) -> Iterator[Table]:
    if not tensors:
        return
    headings = ["longest held" if held else "largest at the peak", "what", "tensor", ">bytes"]
    headings += [_held_for(report), "last used in", "made at"] if held else ["born in", "died after", "made at"]
    rows = []
    for one in tensors:
        tensor = f"{one.dtype}[{', '.join(map(str, one.shape))}]"
        row = [one.name, _short(one.category), tensor, format_bytes(one.bytes if held else one.bytes_at_peak)]
        if held:
            lifetime = f"{one.lifetime_nodes:,} ops" if one.lifetime_ns is None else format_ns(one.lifetime_ns)
            row += [lifetime, "" if one.last_used is None else one.last_used.name]
        else:
            row += ["(before)" if one.born is None else one.born.name, "" if one.died is None else one.died.name]
        rows.append([*row, short_line(one.source)])
    yield Table(headings, rows, widest=32)


def _held_for(report: MemoryReport) -> str:
    timing = report.graph.timing
    if timing is None:
        return ">held for"
    return ">held for (one run)" if timing.runs == 1 else f">held for (by medians of {timing.runs:,})"


def _size(size: int, at_least: bool) -> str:
    return ("≥ " if at_least else "") + format_bytes(size)


def _at_least(report: MemoryReport, unknown: int) -> bool:
    """Whether there may be more: something in it is unknown, or everything is, as only module calls were recorded."""
    return bool(unknown) or (report.at_least and not report.unknown_storages)


def _share(report: MemoryReport, size: int) -> str:
    return f"{100 * size / report.peak_bytes:.1f} %" if report.peak_bytes else ""


def _figures(report: MemoryReport, row: ModuleMemory | LineMemory) -> list[str]:
    """Bytes, share and what most of it is."""
    mostly = max(row.categories, key=lambda key: row.categories[key])
    return [_size(row.bytes, _at_least(report, row.unknown)), _share(report, row.bytes), _short(mostly)]


def _short(category: str) -> str:
    return category.replace("_", " ")

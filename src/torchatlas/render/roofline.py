"""Cost report -> the roofline plot, as SVG: every kind of call as a circle under what the device can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchatlas.analysis.cost import CostReport, cost
from torchatlas.analysis.devices import Device
from torchatlas.errors import AnalysisError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, OperationType
from torchatlas.graph.columns import Array
from torchatlas.graph.names import short_name
from torchatlas.render.axes import (
    HEADING,
    MARGIN,
    SMALL,
    Area,
    Room,
    Scale,
    base_axis,
    footer,
    legend,
    log_span,
    log_ticks,
    open_page,
    plottable,
    short,
    side_axis,
    side_title,
    title_of,
    widest,
)
from torchatlas.render.fonts import text_width
from torchatlas.render.svg import Canvas
from torchatlas.render.theme import mixed
from torchatlas.units import format_bytes, format_flops, format_ns

_LABELS = 8  # how many ops are named


def roofline(
    graph: Graph, device: Device | str | None = None, *, width: int = 1200, height: int = 700, theme: str = "light"
) -> str:
    """How fast every operation ran against what the device can do: FLOPs per second over FLOPs per byte moved.

    Equal calls are one circle, whose area is the time they took together. Where nothing was timed, the times are the
    best that the device allows. `device` is as in `atlas.cost`; "here" measures this machine.
    """
    report = cost(plottable(graph), device)
    dots, hidden = _dots(report)
    measured = graph.measured()
    timed = measured is not None
    best = f"at best on {report.device.name!r}, as nothing was timed"
    how = best if measured is None else f"as measured ({measured.what})"
    roofs = _roofs(report, dots)
    highest, bandwidth = max(roofs.values()), report.device.bandwidth
    subtitle = f"roofs of {report.device.name!r} ({report.device.source}); times {how}"
    canvas = open_page(title_of("Roofline", graph), subtitle, width, height, theme)
    types = dict.fromkeys(dot.type for dot in dots)
    top = legend(canvas, [(canvas.theme.stroke(kind), str(kind)) for kind in types], HEADING)
    ridge = highest / bandwidth
    reach = log_span(min(ridge, *(dot.intensity for dot in dots)), max(ridge, *(dot.intensity for dot in dots)))
    rates = log_span(min(dot.rate for dot in dots) / 2, max(highest * 1.2, *(dot.rate for dot in dots)))
    across, up = log_ticks(*reach, max(3, width // 100)), log_ticks(*rates, max(3, height // 50))
    area = Area(MARGIN + widest(map(_rate, up)) + 10, top + 34, width - MARGIN, height - 84)
    base = Scale(*reach, area.left, area.right, log=True)
    side = Scale(*rates, area.bottom, area.top, log=True)
    side_title(canvas, top + 16, "FLOPs per second")
    side_axis(canvas, area, side, up, _rate)
    base_axis(canvas, area, base, across, lambda n: f"{n:,.10g}", "FLOPs per byte moved (arithmetic intensity)")
    room = Room(area)
    _draw_roofs(canvas, room, base, side, roofs, bandwidth)
    largest, most = max(dot.time for dot in dots), min(width, height) / 40
    places = [(base(dot.intensity), side(dot.rate), max(2.5, most * math.sqrt(dot.time / largest))) for dot in dots]
    for dot, (x, y, radius) in zip(dots, places, strict=True):
        colour = canvas.theme.stroke(dot.type)
        fill = mixed(canvas.theme.background, colour, 0.55)
        canvas.circle(x, y, radius, fill=fill, stroke=colour, title=dot.title, opacity=0.85)
        room.take(Area(x - radius, y - radius, x + radius, y + radius))
    _name_roofs(canvas, room, base, side, roofs, bandwidth)
    for dot, (x, y, radius) in list(zip(dots, places, strict=True))[:_LABELS]:
        room.label(canvas, x, y, radius, dot.name, canvas.theme.ink)
    small = "" if timed else _start_words(report.device, dots)
    footer(canvas, f"a circle is one kind of call, its area the time of all such calls; {small}{hidden}")
    return canvas.markup()


def _start_words(device: Device, dots: Sequence[_Dot]) -> str:
    """Why best times may lie below the roofs: small calls take no longer than it takes to start them."""
    if not any(dot.each <= device.overhead_s * 1.001 for dot in dots):
        return ""
    return f"below the roofs: too little work for the {short(format_ns(1e9 * device.overhead_s))} that any call takes; "


@dataclass(frozen=True)
class _Dot:
    """Equal calls of one operation."""

    name: str
    title: str
    type: OperationType
    dtype: str  # of its multiply-adds; empty where it has none
    intensity: float
    rate: float
    time: float  # in seconds, of all of them
    each: float  # of one


def _dots(report: CostReport) -> tuple[list[_Dot], str]:
    """The dots, longest time first, and a sentence about the operations that have none."""
    graph, counts = report.graph, report.counts
    seconds = report.roofline.seconds
    if graph.time_ns is not None:
        seconds = np.where(graph.columns["node_time_ns"] > 0, graph.columns["node_time_ns"], np.nan) / 1e9
    work = np.where(counts.macs < 0, -1, 2 * counts.macs + counts.elementwise_flops)
    idle = counts.is_op & (counts.macs >= 0) & ((work == 0) | (counts.bytes == 0))
    unknown = counts.is_op & (counts.macs < 0)
    untimed = counts.is_op & ~idle & ~unknown & ~(seconds > 0)
    nodes = np.flatnonzero(counts.is_op & ~idle & ~unknown & ~untimed)
    if not len(nodes):
        raise AnalysisError("No operation of this graph computes something in a known time: a roofline has no points.")
    columns = (graph.columns["node_operation"], work, counts.bytes, counts.macs > 0)
    _, first, group = np.unique(np.stack([c[nodes] for c in columns]), axis=1, return_index=True, return_inverse=True)
    times, calls = np.bincount(group, seconds[nodes]), np.bincount(group)
    dots = [_dot(graph, int(nodes[at]), int(n), work, counts.bytes, float(t), counts.macs)
            for at, n, t in zip(first, calls, times, strict=True)]  # fmt: skip
    absent = ((idle, "without arithmetic"), (unknown, "without a formula"), (untimed, "without a time"))
    parts = [f"{int(mask.sum()):,} {words}" for mask, words in absent if mask.any()]
    return sorted(dots, key=lambda dot: -dot.time), "not shown: " + ", ".join(parts) if parts else "all are shown"


def _dot(graph: Graph, node: int, calls: int, work: Array, moved: Array, time: float, macs: Array) -> _Dot:
    operation = graph.tables.operations[int(graph.columns["node_operation"][node])]
    times, each = f" ×{calls:,}" if calls > 1 else "", format_ns(1e9 * time / calls)
    amounts = f"{format_flops(int(work[node]))}, {format_bytes(int(moved[node]))} and {each} each"
    title = clean(f"{operation.name}{times}, first {graph.index.name(node)}: {amounts}")
    inputs = graph.nodes[node].inputs if macs[node] > 0 else []
    dtype = inputs[0].dtype if inputs else ""
    intensity, rate = float(work[node] / moved[node]), float(work[node]) * calls / time
    name = clean(short_name(operation.name)) + times
    return _Dot(name, title, operation.type, dtype, intensity, rate, time, time / calls)


def _roofs(report: CostReport, dots: Sequence[_Dot]) -> dict[str, float]:
    """The FLOPs per second that limit each kind of arithmetic: multiply-adds of each dtype, and the rest."""
    rates: dict[float, list[str]] = {}
    for dtype in sorted({dot.dtype for dot in dots if dot.dtype}):
        rates.setdefault(report.device.flops_for(dtype), []).append(dtype)
    roofs = {f"multiply-adds in {' and '.join(dtypes)}": rate for rate, dtypes in rates.items()}
    if report.device.vector_flops not in rates:
        roofs["other arithmetic"] = report.device.vector_flops
    return roofs


def _draw_roofs(
    canvas: Canvas, room: Room, base: Scale, side: Scale, roofs: dict[str, float], bandwidth: float
) -> None:
    """The slope that bandwidth sets, and from it a level line for each kind of arithmetic."""
    highest = max(roofs.values())
    slope = max(base.low, side.low / bandwidth), highest / bandwidth
    lines = [((base(x), side(x * bandwidth)), (base(slope[1]), side(highest)), "") for x in slope[:1]]
    for rate in roofs.values():
        left = base(max(base.low, rate / bandwidth))
        lines.append(((left, side(rate)), (base.end, side(rate)), "" if rate == highest else "5 4"))
    for start, end, dash in lines:
        canvas.line(*start, *end, stroke=canvas.theme.ink, stroke_width=1.4, dash=dash)
        room.take_line(start, end)


def _name_roofs(
    canvas: Canvas, room: Room, base: Scale, side: Scale, roofs: dict[str, float], bandwidth: float
) -> None:
    """Write the name of each roof above its right end, of the memory left of the slope, and of the ridge."""
    paint, highest = canvas.theme, max(roofs.values())
    ridge = highest / bandwidth
    canvas.circle(base(ridge), side(highest), 3.5, fill=paint.accent)
    named = [(base.end, side(rate), f"{words}: {_rate(rate)}") for words, rate in roofs.items()]
    half = math.sqrt(max(base.low, side.low / bandwidth) * ridge)
    memory_rate = short(format_flops(bandwidth)).replace("FLOPs", "B/s")
    named.append((base(half) - 4, side(half * bandwidth) - 4, f"memory: {memory_rate}"))
    for right, y, text in named:
        for below in (-6, 17):
            box = Area(right - text_width(text, SMALL), y + below - 12, right, y + below + 3)
            if room.fits(box):
                room.write(canvas, box, text, paint.ink)
                break
    room.label(canvas, base(ridge), side(highest), 5, f"ridge: {ridge:,.3g} FLOPs per byte", paint.accent)


def _rate(flops: float) -> str:
    return short(format_flops(flops)).replace("FLOPs", "FLOP/s")

"""Graph -> the plots people expect, as SVG: memory over a run, the roofline, time by kind of op, gradient norms.

Each answers in its subtitle; each leaves out what was not measured, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchatlas.analysis.cost import CostReport, cost
from torchatlas.analysis.devices import Device
from torchatlas.analysis.gradients import gradient_norms as norms_of
from torchatlas.analysis.gradients import gradient_values, parameter_shapes
from torchatlas.analysis.memory import memory
from torchatlas.analysis.storages import CATEGORIES
from torchatlas.analysis.summary import operations_mask
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.graph import Graph, OperationType, Phase
from torchatlas.graph.columns import PHASES, Array
from torchatlas.graph.names import short_name
from torchatlas.registry import near_names
from torchatlas.render.axes import (
    HEADING,
    MARGIN,
    SMALL,
    Area,
    Room,
    Scale,
    base_axis,
    below_axis,
    footer,
    legend,
    legend_table,
    log_span,
    log_ticks,
    open_page,
    round_ticks,
    short,
    side_axis,
    side_title,
    widest,
)
from torchatlas.render.drawing import Drawing
from torchatlas.render.fonts import clipped, text_width
from torchatlas.render.svg import Anchor, Canvas, Point
from torchatlas.render.theme import Theme, mixed
from torchatlas.render.theme import theme as theme_named
from torchatlas.units import format_bytes, format_flops, format_ns

# Memory from the bottom of the stack up: what stays below what comes and goes. The colours are those of ops that mean
# nothing here; all that meet stay apart as theme.py says.
_LAYERS = {
    "parameters": OperationType.CONVOLUTION,
    "buffers": OperationType.POOLING,
    "constants": OperationType.MOVEMENT,
    "inputs": OperationType.VIEW,
    "optimizer_state": OperationType.NORM,
    "gradients": OperationType.RECURRENT,
    "saved_activations": OperationType.ACTIVATION,
    "activations": OperationType.ACTIVATION,
    "temporaries": OperationType.ATTENTION,
    "unattributed": OperationType.UNKNOWN,
}
_SHADES = {Phase.FORWARD: 0.85, Phase.RECOMPUTE: 0.68, Phase.BACKWARD: 0.5, Phase.OPTIMIZER: 0.3, Phase.OTHER: 0.15}
_LABELS = 8  # how many ops of a roofline are named


KINDS = ("memory", "roofline", "time", "gradients")


def plot(
    graph: Graph,
    kind: str = "memory",
    *,
    width: int = 1200,
    height: int = 700,
    theme: str = "light",
    device: Device | str | None = None,
) -> Drawing:
    """Memory over the run ("memory"), ops under a device's roofs ("roofline"), time by type of op ("time"), or the
    norms of gradients by depth ("gradients"). `device` is the roofline's."""
    if kind == "roofline":
        svg = roofline(graph, device, width=width, height=height, theme=theme)
    elif kind in KINDS:
        draws = {"memory": memory_timeline, "time": time_by_type, "gradients": gradient_norms}
        svg = draws[kind](graph, width=width, height=height, theme=theme)
    else:
        near = " or ".join(map(repr, near_names(kind, KINDS))) if isinstance(kind, str) else ""
        raise InvalidInputError(
            f"kind={kind!r} is no plot" + (f"; did you mean {near}?" if near else "") + f" Known: {', '.join(KINDS)}."
        )
    return Drawing(svg, width, height)


def memory_timeline(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """The bytes alive after every operation, stacked by what they are for, with the peak and the phases."""
    report = memory(_checked(graph))
    node, at_least = report.node, "at least " if report.at_least else ""
    subtitle = f"peak {at_least}{format_bytes(report.peak_bytes)} after {node.name} ({node.phase})"
    canvas = open_page(_title("Memory", graph), subtitle, width, height, theme)
    layers = [key for key in _LAYERS if report.timeline[key].max() > 0]
    rows = [
        (_area_colour(canvas.theme, _LAYERS[key]), CATEGORIES[key], format_bytes(report.by_category[key]))
        for key in reversed(layers)
    ]
    beside = width >= 760  # there is room for a legend beside the data, in the order of the stack
    top = HEADING if beside else legend(canvas, [(row[0], f"{row[1]} {row[2]}") for row in rows], HEADING)
    ticks = round_ticks(report.peak_bytes, max(2, height // 110), base=1024)
    say = _bytes_tick
    right = width - MARGIN - (widest(f"{row[1]}   {row[2]}" for row in rows) + 18 + 24 if beside else 0)
    area = Area(MARGIN + widest(map(say, ticks)) + 10, top + 42, right, height - 60)
    room = 30 / (area.bottom - area.top)  # for the words at the peak
    side = Scale(0, max(report.peak_bytes, 1) / (1 - room), area.bottom, area.top)
    base = Scale(0, len(graph), area.left, area.right)
    unnamed = _phases(canvas, area, base, graph)
    hint = "; the darkest ground is recomputation" if Phase.RECOMPUTE in unnamed else ""
    side_title(canvas, top + 12, f"bytes alive after each operation{hint}")
    side_axis(canvas, area, side, ticks, say)
    _stack(
        canvas,
        area,
        base,
        side,
        [(*row[:2], report.timeline[key]) for row, key in zip(rows[::-1], layers, strict=True)],
    )
    for tick in ticks[1:]:  # the grid again, so that it can be followed across the stack
        canvas.line(area.left, side(tick), area.right, side(tick), stroke=canvas.theme.background, opacity=0.35)
    limits = _phase_limits(canvas, area, base, graph)
    words = f"peak {at_least}{format_bytes(report.peak_bytes)}, {node.name}"
    _peak(canvas, area, (base(node.id + 0.5), side(report.peak_bytes)), words, limits)
    counts = round_ticks(len(graph), max(2, width // 130))
    base_axis(canvas, area, base, counts, lambda n: f"{n:,.0f}", "operations, in the order they ran")
    if beside:
        legend_table(canvas, rows, right + 24, area.top, "at the peak")
    return canvas.markup()


def roofline(
    graph: Graph, device: Device | str | None = None, *, width: int = 1200, height: int = 700, theme: str = "light"
) -> str:
    """How fast every operation ran against what the device can do: FLOPs per second over FLOPs per byte moved.

    Equal calls are one circle, whose area is the time they took together. Where nothing was timed, the times are the
    best that the device allows. `device` is as in `atlas.cost`; "here" measures this machine.
    """
    report = cost(_checked(graph), device)
    dots, hidden = _dots(report)
    timed = graph.time_ns is not None
    how = "as measured" if timed else f"at best on {report.device.name!r}, as nothing was timed"
    roofs = _roofs(report, dots)
    highest, bandwidth = max(roofs.values()), report.device.bandwidth
    subtitle = f"roofs of {report.device.name!r} ({report.device.source}); times {how}"
    canvas = open_page(_title("Roofline", graph), subtitle, width, height, theme)
    types = dict.fromkeys(dot.type for dot in dots)
    top = legend(canvas, [(_strong(canvas.theme, kind), str(kind)) for kind in types], HEADING)
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
        colour = _strong(canvas.theme, dot.type)
        fill = mixed(canvas.theme.background, colour, 0.55)
        canvas.circle(x, y, radius, fill=fill, stroke=colour, title=dot.title, opacity=0.85)
        room.take(Area(x - radius, y - radius, x + radius, y + radius))
    _name_roofs(canvas, room, base, side, roofs, bandwidth)
    for dot, (x, y, radius) in list(zip(dots, places, strict=True))[:_LABELS]:
        room.label(canvas, x, y, radius, dot.name, canvas.theme.ink)
    footer(canvas, f"a circle is one kind of call, its area the time of all such calls; {hidden}")
    return canvas.markup()


def time_by_type(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """How long each kind of operation took, by phase, longest first."""
    if _checked(graph).time_ns is None:
        raise AnalysisError("No operation of this graph was timed. Record a run: atlas.capture(model, *args).")
    bars = _bars(graph, theme_named(theme))
    total, timed = sum(bar.time_ns for bar in bars), sum(bar.calls for bar in bars)
    untimed = int(operations_mask(graph).sum()) - timed
    subtitle = f"{'at least ' if untimed else ''}{format_ns(total)} in {timed:,} operations"
    subtitle += f"; {untimed:,} more were not timed" if untimed else ""
    canvas = open_page(_title("Time", graph, " by kind of operation"), subtitle, width, height, theme)
    paint, phases = canvas.theme, [at for at in range(len(PHASES)) if any(bar.phases[at] for bar in bars)]
    shades = [(mixed(paint.background, paint.ink, _SHADES[PHASES[at]]), str(PHASES[at])) for at in phases]
    top = legend(canvas, shades if len(shades) > 1 else [], HEADING) + 8
    bars = _folded(bars, int((height - 56 - top) / 17), paint)
    texts = [_time_text(bar, total) for bar in bars]
    left = MARGIN + widest((bar.label for bar in bars), 13) + 12
    area = Area(left, top, width - MARGIN - widest(texts, 13) - 10, height - 56)
    longest = max(bars[0].time_ns, 1)
    base, step = Scale(0, longest, area.left, area.right), (area.bottom - area.top) / len(bars)
    ticks = round_ticks(longest, max(2, int(area.right - area.left) // 110))
    thick = min(0.7 * step, 34)
    for place, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        x, y = area.left, area.top + step * (place + 0.5)
        canvas.text(left - 12, y + 4.5, bar.label, size=13, fill=paint.ink, anchor="end")
        for at in phases:
            long = base(float(bar.phases[at])) - area.left
            if long > 0:
                said = f"{bar.label}, {PHASES[at]}: {format_ns(int(bar.phases[at]))}"
                colour = mixed(paint.background, bar.colour, _SHADES[PHASES[at]])
                canvas.rect(x, y - thick / 2, long, thick, fill=colour, title=said)
                x += long
        canvas.text(x + 10, y + 4.5, text, size=13, fill=paint.soft)
    base_axis(canvas, area, base, ticks, lambda ns: short(format_ns(ns)), "time on the host")
    return canvas.markup()


def gradient_norms(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """How long each parameter's gradient is, in the order in which forward first uses the parameters.

    Needs what backward made: a graph captured with values="stats" or values="all".
    """
    norms = norms_of(_checked(graph))
    names, fine = list(norms), {name: norm for name, norm in norms.items() if norm > 0}
    low, high = (min(fine.values()), max(fine.values())) if fine else (0.1, 1.0)
    odd = {
        "zero": [name for name in names if norms[name] == 0],
        "not finite": [n for n in names if norms[n] != norms[n]],
    }
    facts = [f"{len(names):,} parameters"] + [f"gradients of {_norm(low)} to {_norm(high)}"] * bool(fine)
    facts += [f"{len(listed):,} {words}" for words, listed in odd.items() if listed]
    lost = len(gradient_values(graph)) - len(norms)
    facts += [f"{lost:,} more were not kept"] * bool(lost)
    canvas = open_page(_title("Gradient norms", graph, " by depth"), ", ".join(facts), width, height, theme)
    paint = canvas.theme
    colours = [_strong(paint, OperationType.ACTIVATION), _strong(paint, OperationType.CONVOLUTION)]
    matrix = {name: len(shape) > 1 for name, shape in parameter_shapes(graph).items()}
    words = ("vectors: biases and scales", "matrices and kernels")
    entries = [(colours[at], words[at]) for at in (1, 0) if any(matrix[name] == bool(at) for name in names)]
    entries += [(paint.accent, "zero (at the bottom) or not finite (at the top)")] * bool(len(names) - len(fine))
    top = legend(canvas, entries, HEADING)
    span = log_span(low, high)
    ticks = log_ticks(*span, max(3, height // 70))
    area = Area(MARGIN + widest(map(_norm, ticks)) + 10, top + 40, width - MARGIN, height - 64)
    side = Scale(*span, area.bottom, area.top, log=True)
    base = Scale(0, len(names), area.left, area.right)
    side_title(canvas, top + 16, "L2 norm of the gradient")
    _modules(canvas, area, base, names)
    side_axis(canvas, area, side, ticks, _norm)
    places = {}
    for at, name in enumerate(names):
        y = side(norms[name]) if name in fine else area.bottom if norms[name] == 0 else area.top
        places[name] = base(at + 0.5), y
    trend = [places[name] for name in fine if matrix[name]]
    canvas.polyline(trend, stroke=colours[1], stroke_width=1.2, opacity=0.45)
    radius, room = min(4.5, max(1.5, 0.35 * (area.right - area.left) / len(names))), Room(area)
    for name, (x, y) in places.items():
        colour = colours[matrix[name]] if name in fine else paint.accent
        fill = colour if name in fine else paint.background
        canvas.circle(x, y, radius, fill=fill, stroke=colour, title=f"{name}: {_norm(norms[name])}")
        room.take(Area(x - radius, y - radius, x + radius, y + radius))
    ordered = sorted(fine, key=fine.__getitem__)
    for name in dict.fromkeys([*ordered[-1:], *ordered[:1], *odd["not finite"][:2], *odd["zero"][:2]]):
        text = clipped(f"{name}  {_norm(norms[name])}", SMALL, (area.right - area.left) / 2)
        room.label(canvas, *places[name], radius, text, paint.ink)
    canvas.line(area.left, area.bottom, area.right, area.bottom, stroke=paint.edge)
    below_axis(canvas, area, "parameters, in the order in which forward uses them")
    return canvas.markup()


# -- what all of them need ---------------------------------------------------------------------------------------------


def _checked(graph: Graph) -> Graph:
    if not isinstance(graph, Graph):
        raise InvalidInputError(f"a plot takes a Graph, not {type(graph).__name__}; make one with atlas.capture(...).")
    if not operations_mask(graph).any():
        raise AnalysisError(
            "Nothing ran in this graph, so there is nothing to plot. Capture a model: atlas.capture(...)."
        )
    return graph


def _title(what: str, graph: Graph, how: str = "") -> str:
    name = graph.scopes[""].type
    return (f"{what} of {name}" if name else what) + how


def _strong(theme: Theme, kind: OperationType) -> str:
    return theme.fills[kind][1]


def _area_colour(theme: Theme, kind: OperationType) -> str:
    """Quieter than a stroke, as there is so much of it."""
    return mixed(theme.background, _strong(theme, kind), 0.72)


# -- memory ------------------------------------------------------------------------------------------------------------


def _bytes_tick(size: float) -> str:
    return short(format_bytes(int(size)))


def _stack(canvas: Canvas, area: Area, base: Scale, side: Scale, layers: Sequence[tuple[str, str, Array]]) -> None:
    """Each layer (colour, words, bytes) on those before it. With more nodes than pixels, a column shows its fullest."""
    heights = np.array([np.maximum(sizes, 0) for _, _, sizes in layers])
    nodes, total = heights.shape[1], heights.sum(axis=0)
    edges = np.unique(np.linspace(0, nodes, min(nodes, int(area.right - area.left)) + 1).astype(np.int64))
    chosen = np.array([a + int(total[a:b].argmax()) for a, b in pairwise(edges.tolist())])
    places, below = [base(edge) for edge in edges.tolist()], np.zeros(len(chosen), np.int64)
    for (colour, words, _), sizes in zip(layers, heights, strict=True):
        above = below + sizes[chosen]
        outline = _steps(places, above, side) + _steps(places, below, side)[::-1]
        canvas.polyline(outline, fill=colour, title=words)
        below = above


def _steps(places: Sequence[float], sizes: Array, side: Scale) -> list[Point]:
    """The line that is level from each place to the next."""
    change = np.flatnonzero(np.diff(sizes, prepend=-1))
    ends = [*change[1:].tolist(), len(sizes)]
    levels = [side(float(size)) for size in sizes[change]]
    return [(places[at], y) for a, b, y in zip(change.tolist(), ends, levels, strict=True) for at in (a, b)]


def _phase_runs(graph: Graph) -> list[tuple[Phase, int, int]]:
    """Which phase the nodes from one to before another belong to."""
    phase = graph.columns["node_phase"]
    begins = np.flatnonzero(np.diff(phase, prepend=255)).tolist()
    return [(PHASES[phase[a]], a, b) for a, b in zip(begins, [*begins[1:], len(graph)], strict=True)]


def _phases(canvas: Canvas, area: Area, base: Scale, graph: Graph) -> set[Phase]:
    """A ground of its own for every phase but forward, its name above where there is room; those never named."""
    tints = {Phase.FORWARD: 0, Phase.BACKWARD: 2, Phase.RECOMPUTE: 3, Phase.OPTIMIZER: 1, Phase.OTHER: 1}
    runs, named = _phase_runs(graph), set[Phase]()
    for phase, begin, end in runs:
        left, right, paint = base(begin), base(end), canvas.theme
        canvas.rect(left, area.top, right - left, area.bottom - area.top, fill=paint.tints[tints[phase]])
        if text_width(str(phase), SMALL) + 8 < right - left:
            canvas.text((left + right) / 2, area.top - 7, str(phase), size=SMALL, fill=paint.soft, anchor="middle")
            named.add(phase)
    return {phase for phase, _, _ in runs} - named


def _phase_limits(canvas: Canvas, area: Area, base: Scale, graph: Graph) -> list[float]:
    """Lines where a phase ends, and where they are."""
    limits = [base(begin) for _, begin, _ in _phase_runs(graph)[1:]]
    if len(limits) > 8:  # recomputation changes the phase at every layer: lines would be all there is to see
        return []
    for x in limits:
        canvas.line(x, area.top - 4, x, area.bottom, stroke=canvas.theme.edge, stroke_width=0.8, dash="3 3")
    return limits


def _peak(canvas: Canvas, area: Area, place: Point, words: str, limits: Sequence[float]) -> None:
    """A dot, and words on the side where they have room and cross the fewest lines."""
    (x, y), paint, wide = place, canvas.theme, text_width(words, 13, bold=True)
    canvas.circle(x, y, 4, fill=paint.accent, stroke=paint.background, stroke_width=1.2)
    sides: dict[Anchor, tuple[float, float]] = {"start": (x, area.right), "end": (area.left, x)}

    def trouble(side: Anchor) -> tuple[bool, int, float]:
        left, right = sides[side]
        begin = x if side == "start" else x - wide
        crossed = sum(begin < limit < begin + wide for limit in limits)
        return right - left < wide, crossed, left - right

    anchor = min(sides, key=trouble)
    room = sides[anchor][1] - sides[anchor][0]
    canvas.text(x, y - 10, clipped(words, 13, room, bold=True), size=13, fill=paint.accent, bold=True, anchor=anchor)


# -- the roofline ------------------------------------------------------------------------------------------------------


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


def _dots(report: CostReport) -> tuple[list[_Dot], str]:
    """What can be drawn, longest first, and how much cannot, in words."""
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
    title = f"{operation.name}{times}, first {graph.index.name(node)}: {amounts}"
    taken = graph.nodes[node].inputs if macs[node] > 0 else []
    dtype = taken[0].dtype if taken else ""
    intensity, rate = float(work[node] / moved[node]), float(work[node]) * calls / time
    return _Dot(short_name(operation.name) + times, title, operation.type, dtype, intensity, rate, time)


def _roofs(report: CostReport, dots: Sequence[_Dot]) -> dict[str, float]:
    """What limits arithmetic, in words, with its FLOPs per second: each dtype that is multiplied, and the rest."""
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
    """Above each roof at its right end, where the highest begins, and left of the slope."""
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


# -- time --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bar:
    """One kind of operation, or several."""

    label: str
    colour: str
    phases: Array  # nanoseconds in each of PHASES
    calls: int

    @property
    def time_ns(self) -> int:
        return int(self.phases.sum())


def _bars(graph: Graph, theme: Theme) -> list[_Bar]:
    is_op, time_ns, operation = operations_mask(graph), graph.columns["node_time_ns"], graph.columns["node_operation"]
    timed = np.flatnonzero(is_op & (time_ns >= 0))
    kinds = list(OperationType)
    kind = np.array([kinds.index(one.type) for one in graph.tables.operations])[operation[timed]]
    sums, calls = np.zeros((len(kinds), len(PHASES)), np.int64), np.bincount(kind, minlength=len(kinds))
    np.add.at(sums, (kind, graph.columns["node_phase"][timed]), time_ns[timed])
    bars = [_Bar(str(one), _strong(theme, one), sums[at], int(calls[at])) for at, one in enumerate(kinds) if calls[at]]
    return sorted(bars, key=lambda bar: -bar.time_ns)


def _folded(bars: list[_Bar], most: int, theme: Theme) -> list[_Bar]:
    """At most so many bars: the shortest become one."""
    if len(bars) <= most:
        return bars
    rest = bars[most - 1 :]
    phases, calls = np.sum([bar.phases for bar in rest], axis=0), sum(bar.calls for bar in rest)
    return [*bars[: most - 1], _Bar(f"{len(rest)} other kinds", _strong(theme, OperationType.UNKNOWN), phases, calls)]


def _time_text(bar: _Bar, total: int) -> str:
    share = 100 * bar.time_ns / max(total, 1)
    calls = f"{bar.calls:,} operation{'s' * (bar.calls > 1)}"
    return f"{format_ns(bar.time_ns)} · {'< 0.1' if share < 0.1 else f'{share:.1f}'} % · {calls}"


# -- gradients ---------------------------------------------------------------------------------------------------------


def _norm(norm: float) -> str:
    """Three digits, with a power of ten where zeros would be counted."""
    if math.isnan(norm):
        return "not finite"
    if norm == 0 or 0.001 <= norm < 10_000:
        return f"{norm:,.3g}" if norm < 1000 else f"{norm:,.0f}"
    digits, _, power = f"{norm:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return ("" if digits == "1" else f"{digits}×") + f"10{raised}"


def _modules(canvas: Canvas, area: Area, base: Scale, names: Sequence[str]) -> None:
    """Stripes for the modules that the parameters belong to, as deep as most of their names have room."""
    paths = [name.split(".")[:-1] for name in names]
    divisions = [_runs([".".join(path[:depth]) for path in paths]) for depth in range(1, max(map(len, paths)) + 1)]

    def named(runs: list[tuple[str, int, int]]) -> int:
        return sum(end - begin for name, begin, end in runs if _fits(name, base(end) - base(begin)))

    chosen = max(divisions or [_runs([""] * len(names))], key=lambda runs: (named(runs), len(runs)))
    for place, (name, begin, end) in enumerate(chosen):
        left, right = base(begin), base(end)
        if place % 2 == 0:
            canvas.rect(left, area.top, right - left, area.bottom - area.top, fill=canvas.theme.tints[1])
        said = name if _fits(name, right - left) else name.rpartition(".")[2]
        if _fits(said, right - left):
            middle = (left + right) / 2
            canvas.text(middle, area.bottom + 18, said, size=SMALL, fill=canvas.theme.soft, anchor="middle", title=name)


def _fits(text: str, room: float) -> bool:
    return text_width(text, SMALL) + 8 <= room


def _runs(items: Sequence[str]) -> list[tuple[str, int, int]]:
    """Equal neighbours as one: the item, where it begins and before where it ends."""
    begins = [at for at, item in enumerate(items) if at == 0 or items[at - 1] != item]
    return [(items[a], a, b) for a, b in zip(begins, [*begins[1:], len(items)], strict=True)]

"""Graph -> plots as SVG: memory over a run, the roofline, time by kind of op, gradient norms.

The subtitle of a plot states its result. A plot leaves out what was not measured, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchatlas.analysis.devices import Device
from torchatlas.analysis.gradients import gradient_norms as norms_of
from torchatlas.analysis.gradients import gradient_values, parameter_shapes
from torchatlas.analysis.memory import memory
from torchatlas.analysis.storages import CATEGORIES
from torchatlas.analysis.totals import operations_mask
from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, OperationType, Phase
from torchatlas.graph.columns import PHASES, Array
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.registry import did_you_mean
from torchatlas.render.axes import (
    HEADING,
    MARGIN,
    SMALL,
    Area,
    Room,
    Scale,
    base_axis,
    below_axis,
    legend,
    legend_table,
    log_span,
    log_ticks,
    open_page,
    paper,
    plottable,
    round_ticks,
    short,
    side_axis,
    side_title,
    title_of,
    widest,
)
from torchatlas.render.drawing import Drawing
from torchatlas.render.fonts import clipped, text_width
from torchatlas.render.roofline import roofline as roofline
from torchatlas.render.sheet import Size
from torchatlas.render.svg import Anchor, Canvas, Point, in_inches
from torchatlas.render.theme import Theme, mixed
from torchatlas.render.theme import theme as theme_named
from torchatlas.units import format_bytes, format_ns

_SHADES = {Phase.FORWARD: 0.85, Phase.RECOMPUTE: 0.68, Phase.BACKWARD: 0.5, Phase.OPTIMIZER: 0.3, Phase.OTHER: 0.15}
KINDS = ("memory", "roofline", "time", "gradients")
# Memory is known after every node: inputs and outputs have places on its axis as well.
_AXIS = ("inputs, operations and outputs, in the order they ran", "operations, in the order they ran")


@explains_arguments
def plot(
    graph: GraphLike,
    kind: str = "memory",
    *,
    width: int | None = None,
    height: int | None = None,
    size: Size | None = None,
    theme: str = "light",
    device: Device | str | None = None,
) -> Drawing:
    """Plot figures of a graph: memory over a run, the roofline, time by type of op, or norms of gradients by depth.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        kind: "memory", "roofline", "time" or "gradients"; the last needs a graph captured with `values="stats"`.
        width: The width in pixels; 1200 unless given.
        height: The height in pixels; 700 unless given.
        size: The page on paper instead: "column" (3.4 inches wide), "full" (7), a width in inches, or (width, height).
        theme: "light" or "dark".
        device: The device profile of the roofline, as for `atlas.cost`.
    Returns:
        A Drawing: a notebook shows it, `save(path)` writes .svg, .png or .pdf.
    Raises:
        InvalidInputError: There is no plot of that kind, or arguments contradict each other.
        AnalysisError: The graph does not hold what the plot shows.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4), backward=True)
        >>> atlas.plot(graph, "memory", width=600, height=400).svg[:4]
        '<svg'
    """
    if kind not in KINDS:
        hint = did_you_mean(str(kind), KINDS) or "."
        raise InvalidInputError(f"kind={kind!r} is no plot{hint} Known: {', '.join(KINDS)}.")
    graph = as_graph(graph, "plot")
    page = None if size is None else paper(size)
    if page is not None and (width is not None or height is not None):
        raise InvalidInputError(f"size={size!r} and a width or height in pixels are two sizes: pass one.")
    pixel_width, pixel_height = (1200 if width is None else width, 700 if height is None else height)
    if page is not None:
        pixel_width, pixel_height = page.width, page.height
    if kind == "roofline":
        svg = roofline(graph, device, width=pixel_width, height=pixel_height, theme=theme)
    else:
        if device is not None:
            raise InvalidInputError(f"device={device!r} is for the roofline; the plot of {kind} has none.")
        draws = {"memory": memory_timeline, "time": time_by_type, "gradients": gradient_norms}
        svg = draws[kind](graph, width=pixel_width, height=pixel_height, theme=theme)
    if page is None or page.inches is None:
        return Drawing(svg, int(pixel_width), int(pixel_height))
    return Drawing(in_inches(svg, page.inches), page.width, page.height, inches=page.inches)


def memory_timeline(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """The bytes alive after every operation, stacked by what they are for, with the peak and the phases."""
    report = memory(plottable(graph))
    node, at_least = report.node, "at least " if report.at_least else ""
    subtitle = f"peak {at_least}{format_bytes(report.peak_bytes)} after {clean(node.name)} ({node.phase})"
    canvas = open_page(title_of("Memory", graph), subtitle, width, height, theme)
    layers = [key for key in canvas.theme.memory if report.timeline[key].max() > 0]
    rows = [
        (canvas.theme.memory[key], CATEGORIES[key], format_bytes(report.by_category[key])) for key in reversed(layers)
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
    words = f"peak {at_least}{format_bytes(report.peak_bytes)}, {clean(node.name)}"
    _peak(canvas, area, (base(node.id + 0.5), side(report.peak_bytes)), words, limits)
    counts = round_ticks(len(graph), max(2, width // 130))
    base_axis(canvas, area, base, counts, lambda n: f"{n:,.0f}", _AXIS[int(operations_mask(graph).all())])
    if beside:
        legend_table(canvas, rows, right + 24, area.top, "at the peak")
    return canvas.markup()


def time_by_type(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """How long each kind of operation took, by phase, longest first."""
    if plottable(graph).time_ns is None:
        raise AnalysisError(
            "No operation of this graph was timed, so there are no times to plot: capture it without fake."
        )
    bars = _bars(graph, theme_named(theme))
    total, timed = sum(bar.time_ns for bar in bars), sum(bar.calls for bar in bars)
    untimed = int(operations_mask(graph).sum()) - timed
    measured = graph.measured(operations_mask(graph))
    assert measured is not None
    subtitle = f"{'at least ' if untimed else ''}{measured} in {timed:,} operation{'s' * (timed != 1)}"
    subtitle += f"; {untimed:,} more {'was' if untimed == 1 else 'were'} not timed" if untimed else ""
    canvas = open_page(title_of("Time", graph, " by kind of operation"), subtitle, width, height, theme)
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
    for row, (bar, text) in enumerate(zip(bars, texts, strict=True)):
        x, y = area.left, area.top + step * (row + 0.5)
        canvas.text(left - 12, y + 4.5, bar.label, size=13, fill=paint.ink, anchor="end")
        for at in phases:
            long = base(float(bar.phases[at])) - area.left
            if long > 0:
                tooltip = f"{bar.label}, {PHASES[at]}: {format_ns(int(bar.phases[at]))}"
                colour = mixed(paint.background, bar.colour, _SHADES[PHASES[at]])
                canvas.rect(x, y - thick / 2, long, thick, fill=colour, title=tooltip)
                x += long
        canvas.text(x + 10, y + 4.5, text, size=13, fill=paint.soft)
    base_axis(canvas, area, base, ticks, lambda ns: short(format_ns(ns)), "time on the host")
    return canvas.markup()


def gradient_norms(graph: Graph, *, width: int = 1200, height: int = 700, theme: str = "light") -> str:
    """The norm of each parameter's gradient, in the order in which forward first uses the parameters.

    Needs what backward made: a graph captured with values="stats" or values="all".
    """
    norms = norms_of(plottable(graph))
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
    canvas = open_page(title_of("Gradient norms", graph, " by depth"), ", ".join(facts), width, height, theme)
    paint = canvas.theme
    colours = [paint.stroke(OperationType.ACTIVATION), paint.stroke(OperationType.CONVOLUTION)]
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
        canvas.circle(x, y, radius, fill=fill, stroke=colour, title=f"{clean(name)}: {_norm(norms[name])}")
        room.take(Area(x - radius, y - radius, x + radius, y + radius))
    ordered = sorted(fine, key=fine.__getitem__)
    for name in dict.fromkeys([*ordered[-1:], *ordered[:1], *odd["not finite"][:2], *odd["zero"][:2]]):
        text = clipped(f"{clean(name)}  {_norm(norms[name])}", SMALL, (area.right - area.left) / 2)
        room.label(canvas, *places[name], radius, text, paint.ink)
    canvas.line(area.left, area.bottom, area.right, area.bottom, stroke=paint.edge)
    below_axis(canvas, area, "parameters, in the order in which forward uses them")
    return canvas.markup()


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
    _separate(canvas, places, heights[:, chosen], side)


def _separate(canvas: Canvas, places: Sequence[float], heights: Array, side: Scale) -> None:
    """Thin lines between neighbouring areas, so that they can be told apart where their greys are much alike.

    There is none along the upper edge of the stack: it would hide what is only a pixel wide, as a peak may be.
    """
    tops = np.cumsum(heights, axis=0)
    for top, sizes in zip(tops, heights, strict=True):
        inner = np.append((sizes > 0) & (top < tops[-1]), False)
        begins = np.flatnonzero(np.diff(inner, prepend=False)).tolist()
        for a, b in zip(begins[::2], begins[1::2], strict=True):
            line = _steps(places[a : b + 1], top[a:b], side)
            canvas.polyline(line, stroke=canvas.theme.background, stroke_width=0.8)


def _steps(places: Sequence[float], sizes: Array, side: Scale) -> list[Point]:
    """The points of a staircase that is level from each place to the next."""
    change = np.flatnonzero(np.diff(sizes, prepend=-1))
    ends = [*change[1:].tolist(), len(sizes)]
    levels = [side(float(size)) for size in sizes[change]]
    return [(places[at], y) for a, b, y in zip(change.tolist(), ends, levels, strict=True) for at in (a, b)]


def _phase_runs(graph: Graph) -> list[tuple[Phase, int, int]]:
    """Runs of nodes in one phase: the phase, the first node, and the node after the last."""
    phase = graph.columns["node_phase"]
    begins = np.flatnonzero(np.diff(phase, prepend=255)).tolist()
    return [(PHASES[phase[a]], a, b) for a, b in zip(begins, [*begins[1:], len(graph)], strict=True)]


def _phases(canvas: Canvas, area: Area, base: Scale, graph: Graph) -> set[Phase]:
    """Tint the background of each phase, and name it above where there is room. Returns the unnamed phases."""
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
    """Draw a line where a phase ends. Returns the places of the lines."""
    limits = [base(begin) for _, begin, _ in _phase_runs(graph)[1:]]
    if len(limits) > 8:  # recomputation changes the phase at every layer: lines would be all there is to see
        return []
    for x in limits:
        canvas.line(x, area.top - 4, x, area.bottom, stroke=canvas.theme.edge, stroke_width=0.8, dash="3 3")
    return limits


def _peak(canvas: Canvas, area: Area, place: Point, words: str, limits: Sequence[float]) -> None:
    """A dot, with words on the side where they have room and cross the fewest lines."""
    (x, y), paint, width = place, canvas.theme, text_width(words, 13, bold=True)
    canvas.circle(x, y, 4, fill=paint.accent, stroke=paint.background, stroke_width=1.2)
    sides: dict[Anchor, tuple[float, float]] = {"start": (x, area.right), "end": (area.left, x)}

    def trouble(side: Anchor) -> tuple[bool, int, float]:
        left, right = sides[side]
        begin = x if side == "start" else x - width
        crossed = sum(begin < limit < begin + width for limit in limits)
        return right - left < width, crossed, left - right

    anchor = min(sides, key=trouble)
    room = sides[anchor][1] - sides[anchor][0]
    canvas.text(x, y - 10, clipped(words, 13, room, bold=True), size=13, fill=paint.accent, bold=True, anchor=anchor)


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
    kind = np.array([kinds.index(row.type) for row in graph.tables.operations])[operation[timed]]
    sums, calls = np.zeros((len(kinds), len(PHASES)), np.int64), np.bincount(kind, minlength=len(kinds))
    np.add.at(sums, (kind, graph.columns["node_phase"][timed]), time_ns[timed])
    bars = [_Bar(str(k), theme.stroke(k), sums[at], int(calls[at])) for at, k in enumerate(kinds) if calls[at]]
    return sorted(bars, key=lambda bar: -bar.time_ns)


def _folded(bars: list[_Bar], most: int, theme: Theme) -> list[_Bar]:
    """At most `most` bars: the shortest are merged into one."""
    if len(bars) <= most:
        return bars
    rest = bars[most - 1 :]
    phases, calls = np.sum([bar.phases for bar in rest], axis=0), sum(bar.calls for bar in rest)
    return [*bars[: most - 1], _Bar(f"{len(rest)} other kinds", theme.stroke(OperationType.UNKNOWN), phases, calls)]


def _time_text(bar: _Bar, total: int) -> str:
    share = 100 * bar.time_ns / max(total, 1)
    calls = f"{bar.calls:,} operation{'s' * (bar.calls > 1)}"
    return f"{format_ns(bar.time_ns)} · {'< 0.1' if share < 0.1 else f'{share:.1f}'} % · {calls}"


# -- gradients ---------------------------------------------------------------------------------------------------------


def _norm(norm: float) -> str:
    """A norm with three digits, and a power of ten where it is very small or large."""
    if math.isnan(norm):
        return "not finite"
    if norm == 0 or 0.001 <= norm < 10_000:
        return f"{norm:,.3g}" if norm < 1000 else f"{norm:,.0f}"
    digits, _, power = f"{norm:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return ("" if digits == "1" else f"{digits}×") + f"10{raised}"


def _modules(canvas: Canvas, area: Area, base: Scale, names: Sequence[str]) -> None:
    """Stripes for the modules that own the parameters, at the depth at which most of their names have room."""
    paths = [clean(name).split(".")[:-1] for name in names]
    divisions = [_runs([".".join(path[:depth]) for path in paths]) for depth in range(1, max(map(len, paths)) + 1)]

    def named(runs: list[tuple[str, int, int]]) -> int:
        return sum(end - begin for name, begin, end in runs if _fits(name, base(end) - base(begin)))

    chosen = max(divisions or [_runs([""] * len(names))], key=lambda runs: (named(runs), len(runs)))
    for number, (name, begin, end) in enumerate(chosen):
        left, right = base(begin), base(end)
        if number % 2 == 0:
            canvas.rect(left, area.top, right - left, area.bottom - area.top, fill=canvas.theme.tints[1])
        text = name if _fits(name, right - left) else name.rpartition(".")[2]
        if _fits(text, right - left):
            middle = (left + right) / 2
            canvas.text(middle, area.bottom + 18, text, size=SMALL, fill=canvas.theme.soft, anchor="middle", title=name)


def _fits(text: str, room: float) -> bool:
    return text_width(text, SMALL) + 8 <= room


def _runs(items: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of equal neighbours: the item, its first index, and the index after its last."""
    begins = [at for at, item in enumerate(items) if at == 0 or items[at - 1] != item]
    return [(items[a], a, b) for a, b in zip(begins, [*begins[1:], len(items)], strict=True)]

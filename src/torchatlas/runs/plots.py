"""A run -> plots over its steps: time, time by module, memory, loss, gradient norms.

Thin lines from top to bottom mark the steps that have another structure than the one before. With more steps than
pixels a line shows the least and the most of each pixel, and a stack the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from torchatlas.errors import AnalysisError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import OperationType
from torchatlas.registry import near_names
from torchatlas.render.axes import (
    HEADING,
    MARGIN,
    Area,
    Scale,
    base_axis,
    legend,
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
from torchatlas.render.svg import Canvas, Point
from torchatlas.runs.journal import Number
from torchatlas.units import format_bytes, format_ns

if TYPE_CHECKING:
    from torchatlas.runs.run import Run

KINDS = ("time", "modules", "memory", "loss", "gradients")
_MOST_SERIES = 8
_LARGEST = 1e300  # of a number on an axis: a little more, and arithmetic on it is infinite
_LARGEST = 1e300  # of a number on an axis: a little more, and arithmetic on it is infinite
_COLOURS = (
    OperationType.MATMUL,
    OperationType.CONVOLUTION,
    OperationType.ACTIVATION,
    OperationType.NORM,
    OperationType.ATTENTION,
    OperationType.REDUCTION,
    OperationType.EMBEDDING,
    OperationType.LOSS,
)
_REST = "the other modules"


@dataclass(frozen=True)
class _Series:
    """A column to draw; `numbers` are the steps, None among the values what is not known."""

    words: str
    colour: str
    numbers: Sequence[int]
    values: Sequence[float | None]

    @property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None and math.isfinite(value)]


def plot_run(run: Run, kind: str = "time", *, width: int = 1200, height: int = 700, theme: str = "light") -> Drawing:
    """A plot over the steps of a run."""
    if kind not in KINDS:
        near = " or ".join(map(repr, near_names(kind, KINDS))) if isinstance(kind, str) else ""
        hint = f"; did you mean {near}?" if near else "."
        raise InvalidInputError(f"kind={kind!r} is no plot of a run{hint} Known: {', '.join(KINDS)}.")
    if not len(run):
        raise AnalysisError(f"{run.path} holds no step, so there is nothing to plot.")
    draws = {"time": _time, "modules": _modules, "memory": _memory, "loss": _loss, "gradients": _gradients}
    return Drawing(draws[kind](run, width, height, theme), width, height)


def _time(run: Run, width: int, height: int, theme: str) -> str:
    _known(run, "wall_ns", "no step was timed")
    walls = run._of_finished("wall_ns")
    subtitle = (
        f"{format_ns(statistics.median(walls))} a step (median of {len(walls):,}, each timed once while recorded)"
        if walls
        else "no step was finished"
    )
    canvas = _page(run, "Time", subtitle, width, height, theme)
    names = {"wall_ns": "while recorded", "unrecorded_ns": "mean of the unrecorded steps before", "device_ns": "device"}
    return _lines(canvas, run, _columns(canvas, run, names), _ns, "time of a step")


def _memory(run: Run, width: int, height: int, theme: str) -> str:
    names = {
        "process_bytes": "process",
        "peak_bytes": "peak of the tensors of a step",
        "device_bytes": "allocated on the device",
        "device_peak_bytes": "most that was ever allocated on the device",
    }
    peaks = [peak for name in names for peak in _numbers(run, name) if peak is not None]
    if not peaks:
        raise AnalysisError("No step of this run knows its memory, so there is none to plot.")
    at = [_say(words, _numbers(run, name), format_bytes) for name, words in names.items() if _has(run, name)]
    canvas = _page(run, "Memory", "; ".join(at), width, height, theme)
    return _lines(canvas, run, _columns(canvas, run, names), _bytes, "bytes", base=1024)


def _loss(run: Run, width: int, height: int, theme: str) -> str:
    losses = _known(run, "loss", "backward was called on no single number")
    subtitle = f"{losses[0]:.4g} in the first step, {losses[-1]:.4g} in the last, {min(losses):.4g} at least"
    odd = [loss for loss in _numbers(run, "loss") if loss is not None and not math.isfinite(loss)]
    subtitle += f"; {len(odd):,} not finite" if odd else ""
    canvas = _page(run, "Loss", subtitle, width, height, theme)
    return _lines(canvas, run, _columns(canvas, run, {"loss": "loss"}), _plain, "what backward was called on")


def _gradients(run: Run, width: int, height: int, theme: str) -> str:
    norms = _known(
        run, "gradient_norm", "gradients were not asked for: atlas.recording(model, every=1, gradients=True)"
    )
    subtitle = f"{min(norms):.3g} to {max(norms):.3g} over all parameters"
    canvas = _page(run, "Gradient norms", subtitle, width, height, theme)
    parts = [name for name in run.columns if name.startswith("gradient_norm:")]
    parts = sorted(parts, key=lambda name: -_mean(_numbers(run, name)))[: _MOST_SERIES - 1]
    names = {"gradient_norm": "all parameters"} | {name: _path(name) for name in parts}
    return _lines(canvas, run, _columns(canvas, run, names), _plain, "L2 norm of the gradient", log=True)


def _modules(run: Run, width: int, height: int, theme: str) -> str:
    names = [name for name in run.columns if name.startswith("time_ns:")]
    if not names:
        raise AnalysisError("No step of this run has times by module, so there are none to plot.")
    numbers = run.steps.numbers
    timed = [at for at in range(len(numbers)) if any(run.columns[name][at] is not None for name in names)]
    sums = {name: [float(run.columns[name][at] or 0) for at in timed] for name in names}
    ordered = sorted(names, key=lambda name: -sum(sums[name]))
    layers = {_path(name): sums[name] for name in ordered[:_MOST_SERIES]}
    if ordered[_MOST_SERIES:]:
        layers[_REST] = [sum(times) for times in zip(*(sums[name] for name in ordered[_MOST_SERIES:]), strict=True)]
    total = [sum(times) for times in zip(*layers.values(), strict=True)]
    first, share = next(iter(layers)), sum(next(iter(layers.values()))) / max(sum(total), 1)
    finished = run._column("finished")
    whole = [time_ns for at, time_ns in zip(timed, total, strict=True) if finished[at] is not False]
    usual = f"{format_ns(statistics.median(whole))} in ops a step (median of {len(whole):,})" if whole else "unfinished"
    subtitle = f"{usual}; {first}: {share:.0%}"
    canvas = _page(run, "Time by module", subtitle, width, height, theme)
    colours = [_colour(canvas, at) if path != _REST else canvas.theme.soft for at, path in enumerate(layers)]
    top = legend(canvas, list(zip(colours, layers, strict=True)), HEADING)
    edges = _buckets(len(timed), width - 2 * MARGIN)
    heights = {path: [_mean(column[a:b]) for a, b in edges] for path, column in layers.items()}
    high = max(sum(stack) for stack in zip(*heights.values(), strict=True)) or 1.0
    ticks = round_ticks(high, max(2, height // 110))
    area = Area(MARGIN + widest(map(_ns, ticks)) + 10, top + 36, width - MARGIN, height - 60)
    side = Scale(0, high, area.bottom, area.top)
    places = [numbers[timed[a]] for a, _ in edges]
    base = _base(places, area)
    side_title(canvas, top + 14, "time in ops: forward, backward, optimizer" + _change_words(run))
    side_axis(canvas, area, side, ticks, _ns)
    below = [0.0] * len(places)
    for colour, (path, column) in zip(colours, heights.items(), strict=True):
        above = [low + high for low, high in zip(below, column, strict=True)]
        there = [(base(x), side(y)) for x, y in zip(places, above, strict=True)]
        back = [(base(x), side(y)) for x, y in zip(places, below, strict=True)]
        if len(places) == 1:
            there, back = (
                [(area.left, there[0][1]), (area.right, there[0][1])],
                [
                    (area.left, back[0][1]),
                    (area.right, back[0][1]),
                ],
            )
        canvas.polyline([*there, *reversed(back)], fill=colour, title=path)
        below = above
    _changes(canvas, run, area, base)
    _steps_axis(canvas, area, base, places)
    return canvas.markup()


# -- lines -------------------------------------------------------------------------------------------------------------


def _lines(
    canvas: Canvas,
    run: Run,
    series: list[_Series],
    say: Callable[[float], str],
    title: str,
    *,
    log: bool = False,
    base: int = 10,
) -> str:
    width, height = int(canvas.width), int(canvas.height)
    entries = [(line.colour, line.words) for line in series]
    top = legend(canvas, entries if len(entries) > 1 else [], HEADING)
    known = [value for line in series for value in line.known]
    if any(abs(value) > _LARGEST for value in known):
        raise AnalysisError(f"{title} goes beyond {_LARGEST:g} in this run, and no axis reaches there.")
    if log:
        positive = [value for value in known if value > 1 / _LARGEST] or [1.0]
        span = log_span(min(positive), max(positive))
        ticks = log_ticks(*span, max(3, height // 70))
    else:
        low, high = min([0.0, *known]), max([*known, 0.0]) or 1.0
        span = (low, high + 0.05 * (high - low))
        ticks = round_ticks(high, max(2, height // 110), base=base) if high >= 1 else _fractions(high, height // 110)
        ticks += [-tick for tick in round_ticks(-low, 3)[1:]] if low < 0 else []
    area = Area(MARGIN + widest(map(say, ticks)) + 10, top + 36, width - MARGIN, height - 60)
    side = Scale(*span, area.bottom, area.top, log=log)
    numbers = run.steps.numbers
    across = _base(numbers, area)
    side_title(canvas, top + 14, title + _change_words(run))
    side_axis(canvas, area, side, ticks, say)
    _changes(canvas, run, area, across)
    for line in series:
        points = _points(line, area, across, side, log)
        canvas.polyline(points, stroke=line.colour, stroke_width=1.4)
        if len(points) <= 60:
            for x, y in points:
                canvas.circle(x, y, 2.4, fill=line.colour)
        for number, value in zip(line.numbers, line.values, strict=True):
            if value is not None and not math.isfinite(value):
                words = f"step {number:,}: {line.words} {value}"
                canvas.circle(across(number), area.top, 4, fill=canvas.theme.accent, title=words)
    _steps_axis(canvas, area, across, numbers)
    return canvas.markup()


def _points(line: _Series, area: Area, across: Scale, side: Scale, log: bool) -> list[Point]:
    pairs = [
        (number, value)
        for number, value in zip(line.numbers, line.values, strict=True)
        if value is not None and math.isfinite(value) and not (log and value <= 1 / _LARGEST)
    ]
    points: list[Point] = []
    for a, b in _buckets(len(pairs), area.right - area.left):
        bucket = pairs[a:b]
        ends = (
            bucket
            if len(bucket) < 3
            else sorted({bucket.index(min(bucket, key=_value)), bucket.index(max(bucket, key=_value))})
        )
        for item in ends:
            number, value = bucket[item] if isinstance(item, int) else item
            points.append((across(number), side(value)))
    return points


def _value(pair: tuple[int, float]) -> float:
    return pair[1]


def _buckets(count: int, pixels: float) -> list[tuple[int, int]]:
    """Consecutive places, no more buckets than pixels."""
    most = max(min(count, int(pixels)), 1)
    edges = [count * at // most for at in range(most + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def _base(numbers: Sequence[int], area: Area) -> Scale:
    return Scale(numbers[0], max(numbers[-1], numbers[0] + 1), area.left, area.right)


def _steps_axis(canvas: Canvas, area: Area, base: Scale, numbers: Sequence[int]) -> None:
    first, last = numbers[0], max(numbers[-1], numbers[0] + 1)
    steps = [tick + first for tick in round_ticks(last - first, max(2, int(area.right - area.left) // 110))]
    base_axis(canvas, area, base, steps, lambda step: f"{step:,.0f}", "step")


def _change_words(run: Run) -> str:
    return "; a line across: another structure than before" if run.changes else ""


def _changes(canvas: Canvas, run: Run, area: Area, base: Scale) -> None:
    """A thin line for each step whose structure is another than that before it; one to a pixel."""
    drawn = -math.inf
    for number, words in run.changes.items():
        x = base(number)
        if x - drawn >= 1:
            canvas.line(x, area.top, x, area.bottom, stroke=canvas.theme.edge, stroke_width=0.7, opacity=0.55)
            canvas.circle(x, area.top, 2.5, fill=canvas.theme.edge, title=f"step {number:,}: {clean(words)}")
            drawn = x


# -- columns -----------------------------------------------------------------------------------------------------------


def _columns(canvas: Canvas, run: Run, names: dict[str, str]) -> list[_Series]:
    shown = {name: words for name, words in names.items() if _has(run, name)}
    numbers = run.steps.numbers
    return [
        _Series(clean(words), _colour(canvas, at), numbers, _numbers(run, name))
        for at, (name, words) in enumerate(shown.items())
    ]


def _colour(canvas: Canvas, at: int) -> str:
    return canvas.theme.stroke(_COLOURS[at % len(_COLOURS)])


def _numbers(run: Run, name: str) -> list[float | None]:
    column: Sequence[Number] = run.columns.get(name) or [None] * len(run)
    return [None if number is None else float(number) for number in column]


def _has(run: Run, name: str) -> bool:
    return any(number is not None for number in run.columns.get(name, ()))


def _known(run: Run, name: str, why: str) -> list[float]:
    numbers = [number for number in _numbers(run, name) if number is not None and math.isfinite(number)]
    if not numbers:
        raise AnalysisError(f"There is no {name.removesuffix('_ns').replace('_', ' ')} to plot: {why}.")
    return numbers


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else 0.0


def _say(words: str, values: Sequence[float | None], form: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return f"{words}: {form(known[0])} -> {form(known[-1])}, {form(max(known))} at most"


def _page(run: Run, what: str, subtitle: str, width: int, height: int, theme: str) -> Canvas:
    name = f"{what} of a run of {clean(run.model)}" if run.model else f"{what} of {clean(run.path.name)}"
    return open_page(name, subtitle, width, height, theme)


def _path(name: str) -> str:
    return clean(name.partition(":")[2])


def _ns(ns: float) -> str:
    return short(format_ns(ns))


def _bytes(size: float) -> str:
    return short(format_bytes(int(size)))


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _fractions(high: float, count: int) -> list[float]:
    """Ticks from 0 for numbers below 1."""
    power = 10 ** math.floor(math.log10(high))
    step = next((factor * power for factor in (0.1, 0.2, 0.5, 1.0) if high / (factor * power) <= max(count, 2)), power)
    return [step * at for at in range(int(high / step) + 1)]

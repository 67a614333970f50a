"""Graph with recorded values -> the statistics of each, and of whole tensors a histogram."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from torchatlas.graph.columns import Array
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

_BINS = 32
_MOST_HISTOGRAMS = 20_000  # values; each takes about a hundred bytes of the page
_MOST_VALUES = 50_000  # each takes 24 bytes: more would be most of the page


@section("values")
def values(subject: Subject) -> Members:
    """Id of a value -> its figures, null where not recorded: statistics have no share of zeros and no histogram."""
    graph, columns = subject.graph, subject.graph.columns
    arrays: dict[int, Array] = {}
    for key, array in graph.recorded.items():
        node, _, output = key.partition(":")
        if node.isdecimal() and output.isdecimal():  # else what a replay or a program needs
            value = int(columns["output_value"][columns["output_ptr"][int(node)] + int(output)])
            if value >= 0:
                arrays[value] = array
    if not arrays:
        return {}
    if len(arrays) > _MOST_VALUES:
        subject.left_out.append(
            f"The statistics of {len(arrays):,} recorded values are not in this page (at most {_MOST_VALUES:,} are): "
            "graph.subgraph(scope=...) makes a smaller one."
        )
        return {}
    are_statistics = all(array.shape == (5,) and array.dtype == np.float64 for array in arrays.values())
    with_histograms = len(arrays) <= _MOST_HISTOGRAMS
    if not are_statistics and not with_histograms:
        subject.left_out.append(
            f"The histograms of {len(arrays):,} recorded values are not in this page (at most "
            f"{_MOST_HISTOGRAMS:,} are): graph.subgraph(scope=...) makes a smaller one."
        )
    sizes = [_elements(layout.shape) for layout in graph.tables.layouts]
    statistics: dict[str, Any] = {}
    for value, array in sorted(arrays.items()):
        if are_statistics:
            statistics[str(value)] = _noted(array, sizes[int(columns["value_layout"][value])])
        elif array.size and array.dtype.kind in "biufc":
            statistics[str(value)] = _computed(array, with_histograms)
    return {"values.json": statistics} if statistics else {}


def _elements(shape: tuple[int | str, ...]) -> int | None:
    return math.prod(size for size in shape if isinstance(size, int)) if all(type(s) is int for s in shape) else None


def _noted(array: Array, elements: int | None) -> dict[str, Any]:
    """What values="stats" kept: minimum, maximum, mean, deviation, and how many numbers are not finite."""
    low, high, mean, deviation, missing = array.tolist()
    finite = 1 - missing / elements if elements else None
    return _row(mean, deviation, low, high, finite)


def _computed(array: Array, with_histogram: bool) -> dict[str, Any]:
    """The figures of a whole tensor; of complex numbers those of their absolute values."""
    numbers = (np.abs(array) if array.dtype.kind == "c" else array).astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    share = len(finite) / len(numbers)
    if not len(finite):
        return _row(math.nan, math.nan, math.nan, math.nan, share)
    low, high = float(finite.min()), float(finite.max())
    largest = max(abs(low), abs(high)) or 1.0
    scaled = finite / largest  # squares and sums of very large numbers would not be finite
    row = _row(float(scaled.mean()) * largest, float(scaled.std()) * largest, low, high, share)
    row["zeros"] = _rounded(float((numbers == 0).mean()))
    if with_histogram:
        row |= {"low": _rounded(low), "high": _rounded(high), "histogram": _histogram(scaled).tolist()}
    return row


def _histogram(numbers: Array) -> Array:
    """How many numbers, none larger than one, lie in each of the equal parts between the smallest and the largest."""
    low, high = numbers.min(), numbers.max()
    places = ((numbers - low) * (_BINS / (high - low))).astype(np.int64) if high > low else np.zeros(len(numbers), int)
    return np.bincount(np.minimum(places, _BINS - 1), minlength=_BINS)


def _row(mean: float, deviation: float, low: float, high: float, finite: float | None) -> dict[str, Any]:
    return {
        "mean": _rounded(mean),
        "std": _rounded(deviation),
        "min": _rounded(low),
        "max": _rounded(high),
        "finite": None if finite is None else _rounded(finite),
        "zeros": None,
        "histogram": None,
        "low": None,
        "high": None,
    }


def _rounded(number: float) -> float | None:
    """Six digits are enough to look at; None for what is not finite. One missing of a million is not rounded away."""
    if not math.isfinite(number):
        return None
    return number if 0.9 < number < 1 else float(f"{number:.6g}")

"""Two versions of a model and an input -> whether they return the same, and the first operation that differs if not."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchatlas.analysis.alignment import aligned_in_order
from torchatlas.analysis.diff import Comparison, compared
from torchatlas.capturing import capture
from torchatlas.capturing.restore import Restorer
from torchatlas.errors import CaptureError, InvalidInputError
from torchatlas.escapes import clean
from torchatlas.execute.compare_runs import compare_runs, how_far_apart
from torchatlas.execute.node_values import cloned
from torchatlas.execute.trace_variant import node_location
from torchatlas.execute.traced import TracedModel, trace
from torchatlas.graph import Graph
from torchatlas.graph.names import short_name
from torchatlas.torch_private import pytree

_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # whatever lay in memory


def outputs_of(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a model returns. The model, the inputs and random numbers are afterwards as before."""
    with Restorer(model.model if isinstance(model, TracedModel) else model, (args, kwargs), whole=True):
        return cloned(model(*args, **kwargs))


def difference(old: Any, new: Any, tolerance: float | None) -> str:
    """How what two models returned differs, in words; "" if it does not. None asks for the same bits and dtypes."""
    sides = [pytree.tree_flatten_with_path(side)[0] for side in (old, new)]
    names = [[pytree.keystr(path) for path, _ in leaves] for leaves in sides]
    if names[0] != names[1]:
        return f"the old one returns {_listed(names[0])}, the new one {_listed(names[1])}"
    for name, (_, one), (_, other) in zip(names[0], *sides, strict=True):
        called = f"output{name}"
        if tolerance is None and (dtypes := [str(getattr(side, "dtype", "")) for side in (one, other)])[0] != dtypes[1]:
            return f"{called} is {dtypes[0] or type(one).__name__} and {dtypes[1] or type(other).__name__}"
        apart = how_far_apart(one, other, tolerance or 0.0, tolerance or 0.0)
        if isinstance(apart, str):
            return f"{called}: {apart}"
        if apart[2]:
            return f"{called}: {apart[2]:,} of {apart[3]:,} numbers differ, by up to {apart[0]:.3g}"
    return ""


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"output{name}" for name in names[:8])
    return f"{len(names):,} value{'s' * (len(names) != 1)} ({shown}{', ...' if len(names) > 8 else ''})"


def first_difference(
    old: Any, new: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float | None
) -> tuple[list[str], Comparison | None]:
    """Where two models differ first, in lines, and the comparison of their graphs where there are both."""
    if isinstance(old, TracedModel) or isinstance(new, TracedModel):
        return [_of_traces(old, new, args, kwargs, tolerance)], None
    one, other = (capture(model, *args, kwargs=kwargs, values="all", native=False) for model in (old, new))
    comparison, alignment = compared(one, other)
    if set(one.scopes) != set(other.scopes):
        alignment = aligned_in_order(one, other)
    lines, ends = ["no operation that both run makes other numbers"], (len(one), len(other))
    for before, after in sorted(alignment.pairs, key=lambda pair: pair[1]):
        node = other.nodes[after]
        if short_name(node.operation) in _UNINITIALIZED:
            continue
        if what := _recorded_difference(one, other, before, after, tolerance or 0.0):
            parameters = [value.parameter for value in node.inputs if value.parameter]
            takes = f"; it takes {', '.join(parameters)}" if parameters else ""
            lines, ends = [f"they differ first at {node_location(node)}: {what}{takes}"], (before, after)
            break
    for graph, unpaired, end, which in (
        (one, alignment.removed, ends[0], "old"),
        (other, alignment.added, ends[1], "new"),
    ):
        first = next((node for node in unpaired if node < end), None)
        if first is not None:
            when = "before that, " if end < len(graph) else ""
            lines.append(f"{when}only the {which} one runs {node_location(graph.nodes[first])}")
    return [clean(line) for line in lines], comparison


def _recorded_difference(old: Graph, new: Graph, before: int, after: int, tolerance: float) -> str:
    """How what two nodes made differs; "" if it does not, or was not recorded."""
    for number in range(len(new.nodes[after].outputs)):
        one, other = old.recorded.get(f"{before}:{number}"), new.recorded.get(f"{after}:{number}")
        if one is None or other is None:
            continue
        if one.shape != other.shape:
            return f"shape {one.shape} and {other.shape}"
        wrong = ~np.isclose(other, one, rtol=tolerance, atol=tolerance, equal_nan=True)
        if wrong.any():
            dtype = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
            gap = np.nanmax(np.abs(one[wrong].astype(dtype) - other[wrong].astype(dtype)), initial=0.0)
            return f"{int(wrong.sum()):,} of {one.size:,} numbers differ, by up to {gap:.3g}"
    return ""


def _of_traces(old: Any, new: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tolerance: float | None) -> str:
    try:
        both = [model if isinstance(model, TracedModel) else trace(model, *args, kwargs=kwargs) for model in (old, new)]
        first = compare_runs(*both, *args, rtol=tolerance or 0.0, atol=tolerance or 0.0, kwargs=kwargs).first
    except (CaptureError, InvalidInputError) as error:
        return f"where they differ first is not known: {error}"
    return "no node that both have differs" if first is None else f"they differ first at {first}"

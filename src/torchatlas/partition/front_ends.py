"""A graph, a file, a GraphModule, a traced or a plain model -> units, by the first front end that takes it."""

from __future__ import annotations

import os
from typing import Any

from torchatlas.analysis.symbolic_sizes import sizes_of
from torchatlas.errors import AtlasError, CaptureError, InvalidInputError, InvalidModelError
from torchatlas.graph import Graph
from torchatlas.partition.fx_tracing import traced_by_fx
from torchatlas.partition.report import Attempt
from torchatlas.partition.unit_graph import Units, units_of_fx, units_of_graph

Opened = tuple[Units, str, Any, tuple[Attempt, ...]]


def opened(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool | None = None) -> Opened:
    """The units of `x`, where they come from, `x` itself if it can run, and what was tried before.

    `gradients` says whether it runs with autograd on; None: in training mode, not in eval mode.
    """
    graph = graph_in(x)
    if graph is not None:
        what = "a graph" if graph is x else "a file"
        _refuse_inputs(args, kwargs, f"{what} without inputs: it was run already.")
        return units_of_graph(graph), graph.source if graph is x else "file", None, ()
    from torch import fx, nn

    from torchatlas.execute.recorded_run import RecordedRun
    from torchatlas.execute.traced import TracedModel

    if isinstance(x, fx.GraphModule):
        return _of_fx(x, args, kwargs, gradients)
    if isinstance(x, TracedModel):
        _refuse_inputs(args, kwargs, "a traced model without inputs: it has its example.")
        return units_of_graph(x.graph), x.graph.source, x, ()
    if isinstance(x, RecordedRun):
        _refuse_inputs(args, kwargs, "a recorded run without inputs: it has its example.")
        return units_of_graph(x.graph), "run", x, ()
    if not isinstance(x, nn.Module):
        raise InvalidModelError(
            "partition takes a Graph, a file, a torch.fx.GraphModule, a TracedModel or a model, "
            f"not {type(x).__name__}."
        )
    if not args and not kwargs:
        raise InvalidInputError(
            f"partition takes a {type(x).__name__} with example inputs, partition(model, *inputs), or traced already: "
            "atlas.trace(model, *inputs)."
        )
    return _of_model(x, args, kwargs, gradients)


def graph_in(x: Any) -> Graph | None:
    """A graph as it is, or the one that a file holds; None for everything else."""
    if isinstance(x, (str, os.PathLike)):
        return Graph.load(x)
    return x if isinstance(x, Graph) else None


def _refuse_inputs(args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    if args or kwargs:
        raise InvalidInputError(f"partition takes {why}")


def _of_fx(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool | None) -> Opened:
    from torch.fx.passes.shape_prop import ShapeProp

    from torchatlas.capturing.fx import from_fx
    from torchatlas.capturing.gradient_mode import running, wants_gradients
    from torchatlas.capturing.restore import Restorer
    from torchatlas.inputs import bound_arguments

    if args or kwargs:
        inputs = bound_arguments(module, args, kwargs)
        inputs.apply_defaults()
        with Restorer(module, (args, kwargs), None, whole=True):  # in training, running means are updated
            ShapeProp(module).propagate(*inputs.args)
    with running(wants_gradients(module, gradients)):
        graph = from_fx(module)
    return units_of_fx(module, graph), "fx", module, ()


def _of_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool | None) -> Opened:
    """torch.fx keeps modules whole, torch.export takes more models, a recorded run takes all."""
    from torchatlas.execute.recorded_run import record
    from torchatlas.execute.traced import TracedModel

    attempts: list[Attempt] = []
    try:
        return _of_fx(traced_by_fx(model, args, kwargs), args, kwargs, gradients)
    except Exception as error:  # torch.fx lets through whatever the model raises on proxies
        attempts.append(Attempt("fx", first_line(error)))
    try:
        traced = TracedModel(model, args, kwargs=kwargs)
        if not _has_sizes(traced.graph):
            raise CaptureError("its graph has sizes that depend on what is in a tensor, so nobody can count.")
        return units_of_graph(traced.graph), "export", traced, tuple(attempts)
    except CaptureError as error:
        attempts.append(Attempt("export", first_line(error)))
    try:
        run = record(model, args, kwargs, gradients)
        return units_of_graph(run.graph), "run", run, tuple(attempts)
    except AtlasError as error:
        tried = "; ".join(f"{attempt.front_end}: {attempt.reason}" for attempt in attempts)
        raise CaptureError(
            f"{type(model).__name__} could not be partitioned in any way: {tried}; run: {error}"
        ) from error


def _has_sizes(graph: Graph) -> bool:
    try:
        sizes_of(graph, {})
    except InvalidInputError:
        return False
    return True


def first_line(error: Exception, longest: int | None = None) -> str:
    """The type of an error and the first line of its message, cut after `longest` characters."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:longest]}" if text else type(error).__name__

"""pytorch-graph's functions: track one run of a model, or get its figures alone. The model stays as it was."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from traceback import walk_tb
from typing import Any

import torch
from torch import nn

import torchatlas
from torchatlas.analysis.totals import operations_of, slowest
from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing.recording import Recording
from torchatlas.capturing.repeated_runs import Runs, check_runs
from torchatlas.capturing.restore import Restorer
from torchatlas.compat.pytorch_graph.tracker import ComputationalGraphTracker
from torchatlas.errors import InputMismatchError, InvalidInputError, OutOfMemoryError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.inputs import as_call, default_loss, described, differentiable, named_tensors

_TORCH = os.path.dirname(torch.__file__) + os.sep
_TORCHATLAS = os.path.dirname(torchatlas.__file__) + os.sep
# What torch says when it refuses a shape, dtype, device or index. It has no error class of its own for any of them.
_REFUSALS = re.compile(
    r"shape|size|dimension|dims?\b|\dD\b|channel|elements|dtype|type|must be|expect|out of range|out of bounds"
    r"|not implemented for|same device|expected device",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"DefaultCPUAllocator|not enough memory|out of memory|can't allocate memory", re.IGNORECASE)


@explains_arguments
def track_computational_graph(
    model: nn.Module,
    input_tensor: Any,
    track_memory: bool = True,
    track_timing: bool = True,
    track_tensor_ops: bool = True,
    *,
    warmup: int = 0,
    repeat: int = 1,
) -> ComputationalGraphTracker:
    """Run a model under a tracker: forward, and backward from the sum of the floating outputs.

    There is no backward when no output requires a gradient. Parameters, buffers, gradients, random numbers and flags
    are afterwards as before, also after an error.

    Args:
        model: The model.
        input_tensor: A tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        track_memory: Follow which tensors are alive.
        track_timing: Measure how long each op takes.
        track_tensor_ops: False records module calls only, at almost no cost.
        warmup: As in `atlas.capture`.
        repeat: As in `atlas.capture`.
    Returns:
        The tracker, stopped: its `graph`, `get_graph_summary()`, `save_graph_png(...)`.
    Raises:
        InvalidModelError: `model` is not a module.
        InvalidInputError: The input does not fit the signature of the model.
        InputMismatchError: Torch refused the shape or dtype of what the input led to.
    Example:
        >>> import torch, torchatlas as atlas
        >>> tracker = atlas.track_computational_graph(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> tracker.get_graph_summary()["total_nodes"] == len(tracker.graph)
        True
    """
    check_runs(warmup, repeat, untimed="" if track_timing else "track_timing=False")
    tracker = ComputationalGraphTracker(model, track_memory, track_timing, track_tensor_ops)
    args, kwargs = _as_call(model, input_tensor)
    forward_done = False
    try:
        with Restorer(model, (args, kwargs), whole=not track_tensor_ops or repeat > 1) as restorer:

            def run() -> None:
                nonlocal forward_done
                forward_done = False
                result = model(*args, **kwargs)
                forward_done = True
                if differentiable(result):
                    default_loss(result).backward()

            def record(last: bool) -> Recording:
                tracker._start(restorer)
                error: BaseException | None = None
                try:
                    run()
                except BaseException as raised:
                    error = raised
                    raise
                finally:
                    tracker._stop(error)
                    del error  # it holds this frame, and with it every tensor of the run
                    restorer.after_run(tracker._session)
                assert tracker._session is not None
                return tracker._session

            tensors = (args, kwargs, list(model.parameters()))
            Runs(record, lambda: run, restorer, tensors).graph(warmup, repeat)
    except Exception as raised:
        explained = _explained(raised, tracker, forward_done, (args, kwargs))
        if explained is raised:
            raise
        raise explained from raised
    return tracker


@explains_arguments
def analyze_computational_graph(
    model: nn.Module, input_tensor: Any, detailed: bool = True, *, warmup: int = 0, repeat: int = 1
) -> dict[str, Any]:
    """Run a model and say what happened, with the keys of pytorch-graph.

    Args:
        model: The model.
        input_tensor: A tensor, a tuple of positional arguments or a dictionary of keyword arguments.
        detailed: Also give "performance" (operations_per_second of wall time, the `times`, memory_usage,
            slowest_operations) and "layer_analysis": every layer's name with the operations that ran in it, each in
            exactly one layer. What runs outside all layers stands under the model's class in brackets.
        warmup: As in `atlas.capture`.
        repeat: As in `atlas.capture`. Above 1, wall time is that of the program alone; else the cost of recording is in
            it, and operations_per_second is "at least".
    Returns:
        A dictionary; "summary" is `ComputationalGraphTracker.get_graph_summary()`.
    Raises:
        InvalidModelError: `model` is not a module.
        InvalidInputError: The input does not fit the signature of the model.
        InputMismatchError: Torch refused the shape or dtype of what the input led to.
    Example:
        >>> import torch, torchatlas as atlas
        >>> analysis = atlas.analyze_computational_graph(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> sorted(analysis)
        ['layer_analysis', 'performance', 'summary']
    """
    tracker = track_computational_graph(model, input_tensor, warmup=warmup, repeat=repeat)
    summary = tracker.get_graph_summary()
    if not detailed:
        return {"summary": summary}
    eager = summary["times"]["eager"]
    seconds = summary["execution_time"] if eager is None else eager["ns"] / 1e9
    return {
        "summary": summary,
        "performance": {
            "operations_per_second": summary["total_operations"] / seconds,
            "times": summary["times"],
            "memory_usage": summary["memory_usage"],
            "slowest_operations": slowest(tracker.graph),
        },
        "layer_analysis": _layers(tracker),
    }


def _layers(tracker: ComputationalGraphTracker) -> dict[str, list[GraphNode]]:
    root = f"({type(tracker.model).__name__})"
    return {path or root: operations for path, operations in operations_of(tracker.graph)}


# -- errors ------------------------------------------------------------------------------------------------------------


def _as_call(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        raise InvalidInputError("input_tensor is None; pass the tensor, tuple or dictionary the model is called with.")
    empty = isinstance(example, (tuple, list, Mapping)) and not example
    if not empty and next(named_tensors(example), None) is None:
        hint = " Use torch.from_numpy(array)." if type(example).__module__ == "numpy" else ""
        raise InvalidInputError(
            f"input_tensor holds no tensor: it is {_kind_of(example)}.{hint} "
            "Pass a tensor, a tuple of positional arguments or a dictionary of keyword arguments."
        )
    return as_call(model, example)


def _kind_of(example: Any) -> str:
    if isinstance(example, (list, tuple)) and example:
        return f"a {type(example).__name__} of {type(example[0]).__name__}"
    return f"of type {type(example).__name__}"


def _explained(
    error: Exception, tracker: ComputationalGraphTracker, forward_done: bool, inputs: tuple[Any, Any]
) -> Exception:
    """The error to raise: ours where we know what to do, else the program's own with the line added."""
    session = tracker._session
    failure = None if session is None else session.failure
    where = str(failure) if failure is not None else _where(error, tracker.model)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _TOO_LARGE.search(str(error)):
        explained: Exception = OutOfMemoryError(
            f"{type(tracker.model).__name__} ran out of memory on {_shapes(inputs)}: {where}. Use a smaller input, "
            "track_tensor_ops=False, or atlas.capture(model, ..., fake=True), which allocates nothing."
        )
    elif not forward_done and (wrong := _taken_whole(error, tracker.model, inputs[0])):
        explained = InvalidInputError(f"{wrong} It failed in {where}")
    elif not forward_done and _torch_refused(error, failure) and _REFUSALS.search(str(error)):
        explained = InputMismatchError(
            f"{type(tracker.model).__name__} cannot run on {_shapes(inputs)}: {where}. "
            "Compare the shapes and dtypes with what that layer takes, and pass an input that fits."
        )
    else:
        error.add_note(f"torchatlas was tracking {clean(type(tracker.model).__name__)}; it happened at {where}")
        return error
    if session is not None:
        explained.partial = _partial(session)  # type: ignore[attr-defined]
    return explained


def _taken_whole(error: Exception, model: nn.Module, args: tuple[Any, ...]) -> str:
    """What to say of a dictionary that was meant as keyword arguments: none of these, and it came where a tensor is
    due. A model may take one whole."""
    if not isinstance(error, (TypeError, AttributeError)) or len(args) != 1 or not isinstance(args[0], Mapping):
        return ""
    if type(args[0]).__name__ not in str(error):  # as in "must be Tensor, not dict"
        return ""
    given = ", ".join(f"{key}={described(item)}" for key, item in args[0].items())
    return (
        f"{type(model).__name__} takes ({', '.join(inspect.signature(model.forward).parameters)}), but was given "
        f"({given}): not all are its arguments, so the dictionary was passed whole."
    )


def _partial(session: Recording) -> Graph | None:
    try:
        return session.graph
    except MemoryError:
        return None


def _torch_refused(error: Exception, failure: Any) -> bool:
    """Whether torch raised it: an operation did, or Python code of torch. What the model itself raises is its own."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return failure is not None or (bool(files) and files[-1].startswith(_TORCH))


def _where(error: Exception, model: nn.Module) -> str:
    """The user's line and the innermost module on the way to the error, from its traceback."""
    paths = {id(module): path for path, module in model.named_modules()}
    line = module = None
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _TORCHATLAS)):
            line = f"at {file}:{number} in {frame.f_code.co_name}"
        module = paths.get(id(frame.f_locals.get("self")), module)
    first_line = (str(error).splitlines() or [""])[0]
    where = " ".join(part for part in (f"module {module or '(the model itself)'}", line) if part)
    return f"{where}: {type(error).__name__}: {first_line}"


def _shapes(inputs: tuple[Any, Any]) -> str:
    shapes = [described(tensor) for _, tensor in named_tensors(inputs)]
    return ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "") or "no input"

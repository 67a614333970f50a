"""Document 000: track a model's run, summarize it, export it. A short way to what capturing and analysis do.

`track_computational_graph` watches one run and leaves the model as found, `ComputationalGraphTracker` your own code
between start and stop, `analyze_computational_graph` gives the figures alone.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.analysis.summary import operations_of, slowest, summarize
from torchatlas.capturing.capture import default_loss
from torchatlas.capturing.recording import Recording, recording
from torchatlas.capturing.repeat import Runs, check_runs
from torchatlas.capturing.restore import Restorer
from torchatlas.compat.tracker_names import TrackerNames
from torchatlas.errors import (
    FileFormatError,
    InputMismatchError,
    InvalidInputError,
    InvalidModelError,
    OutOfMemoryError,
    StateError,
)
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode, formats
from torchatlas.graph.formats import as_path, suffix_of
from torchatlas.inputs import as_call, named_tensors
from torchatlas.interrupts import Bracket, signals_deferred

_TORCH = os.path.dirname(torch.__file__) + os.sep
_NOT_OURS = os.path.dirname(__file__) + os.sep
# What torch says when it refuses a shape, dtype, device or index. It has no error class of its own for any of them.
_REFUSALS = re.compile(
    r"shape|size|dimension|dims?\b|\dD\b|channel|elements|dtype|type|must be|expect|out of range|out of bounds"
    r"|not implemented for|same device|expected device",
    re.IGNORECASE,
)
_TOO_LARGE = re.compile(r"DefaultCPUAllocator|not enough memory|out of memory|can't allocate memory", re.IGNORECASE)


class ComputationalGraphTracker(TrackerNames, Bracket["ComputationalGraphTracker"]):
    """Records a model's run between `start_tracking()` and `stop_tracking()`, or inside `with tracker:`.

    `track_tensor_ops=False` records whole module calls instead of operations, at almost no cost. Starting again after
    a stop begins anew. `graph` and `get_graph_summary()` also work while tracking: they show what there is so far.
    """

    def __init__(
        self,
        model: nn.Module,
        track_memory: bool = True,
        track_timing: bool = True,
        track_tensor_ops: bool = True,
    ) -> None:
        _check_model(model)
        self.model = model
        self.track_memory, self.track_timing, self.track_tensor_ops = track_memory, track_timing, track_tensor_ops
        self._session: Recording | None = None
        self._began_ns = self._ended_ns = 0

    def start_tracking(self) -> None:
        """Begin to record everything that torch does on this thread."""
        self._start(None)

    def stop_tracking(self) -> None:
        """Stop recording. The graph is decoded when it is first asked for."""
        self._stop(None)

    def _begin(self) -> ComputationalGraphTracker:
        self._start(None)
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop(error)

    def _start(self, guard: Restorer | None) -> None:
        if self.tracking:
            raise StateError("This tracker is tracking already; call stop_tracking() before starting again.")
        options: dict[str, Any] = {"track_timing": self.track_timing, "track_memory": self.track_memory}
        if guard is not None and self.track_tensor_ops:
            session = Recording(self.model, only_inputs=True, guard=guard, **options)
        else:
            session = recording(self.model, track_tensor_ops=self.track_tensor_ops, **options)
        with signals_deferred():  # a recording that nobody knows could not be stopped
            session.start()
            self._session, self._began_ns, self._ended_ns = session, time.perf_counter_ns(), 0

    def _stop(self, error: BaseException | None) -> None:
        if self._session is None or not self._session.running:
            raise StateError("This tracker is not tracking; call start_tracking() before stop_tracking().")
        ended_ns = time.perf_counter_ns()
        self._session.stop(error)
        self._ended_ns = ended_ns

    @property
    def tracking(self) -> bool:
        """Whether it records at this moment."""
        return self._session is not None and self._session.running

    @property
    def graph(self) -> Graph:
        """What was recorded: `graph.nodes`, `graph.edges`, `graph.scopes` and all the rest."""
        if self._session is None:
            raise StateError("Nothing was tracked yet; call start_tracking(), run the model, then stop_tracking().")
        return self._session.graph

    def get_graph_summary(self) -> dict[str, Any]:
        """The run in figures.

        `execution_time` is the wall time in seconds from start to stop, what lies between the operations and the cost
        of recording them included, our decoding afterwards not; on an accelerator it does not wait for the device.
        `operation_time` sums the operations alone. With `track_timing=False` both are nan, which prints and computes
        but is no time, and "timing" is "off". `times` prints readably what these times are: one run, or the median of
        several, and then also what the program takes alone. `memory_usage` is in bytes and prints readably; with
        `track_memory=False` its entries are None and "memory" is "off".
        """
        graph = self.graph
        figures = summarize(graph)
        operation_time = figures.pop("operation_time")
        return {
            "total_nodes": figures.pop("total_nodes"),
            "total_operations": figures.pop("total_operations"),
            "total_edges": figures.pop("total_edges"),
            "execution_time": self._wall_seconds(figures["times"]["recorded"]),
            "operation_time": float("nan") if operation_time is None else operation_time,
            **figures,
            "timing": "on" if self.track_timing else "off",
            "memory": "on" if self.track_memory else "off",
            "tracking": self.tracking,
        }

    def export_graph(self, filepath: str | os.PathLike[str], format: str | None = None) -> Path:
        """Write the graph to a file. Returns the path.

        Its suffix chooses the format (.json, .atlas ...). `format` names it where the suffix does not: "json" writes
        JSON into a file of any name that has no suffix of another format.
        """
        path = as_path(filepath)
        if format is None:
            return self.graph.save(path)
        return formats.save(self.graph, path, suffix="." + str(format).lower().removeprefix("."))

    def save_graph_png(
        self,
        filepath: str | os.PathLike[str],
        width: int = 1200,
        height: int = 800,
        dpi: int = 300,
        show_legend: bool = True,
        node_size: int = 20,
        font_size: int = 10,
    ) -> Path:
        """Draw the graph into a PNG of exactly `width` x `height` pixels; returns the path.

        `dpi` is written into the file. `font_size` is the height of the smallest label and `node_size` that of the
        smallest box, in pixels: what does not fit is closed into fewer boxes. No folder is created.
        """
        from torchatlas.render.picture import draw

        path = as_path(filepath)
        if suffix_of(path) != ".png":
            raise FileFormatError(
                f"save_graph_png writes .png files, and {str(filepath)!r} ends otherwise; graph.save() writes others."
            )
        picture = draw(
            self.graph, width=width, height=height, font_size=font_size, node_size=node_size, legend=show_legend
        )
        return picture.save(path, dpi=dpi)

    def _wall_seconds(self, recorded: dict[str, Any] | None) -> float:
        if not self.track_timing:
            return float("nan")
        if recorded is not None and recorded["runs"] > 1:
            return float(recorded["ns"] / 1e9)
        return ((time.perf_counter_ns() if self.tracking else self._ended_ns) - self._began_ns) / 1e9

    def __repr__(self) -> str:
        state = "tracking" if self.tracking else "new" if self._session is None else "stopped"
        return f"<ComputationalGraphTracker of {clean(type(self.model).__name__)}, {state}>"


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
    """Run the model under a tracker: forward, and backward from the sum of the floating outputs.

    `input_tensor` is a tensor, a tuple of positional arguments or a dictionary of keyword arguments. There is no
    backward when no output requires a gradient. Parameters, buffers, gradients, random numbers and flags are
    afterwards as before, also after an error. `warmup` and `repeat` are as in `atlas.capture`: runs before, which leave
    no trace, and runs whose median counts.
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
                if _differentiable(result):
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


def analyze_computational_graph(
    model: nn.Module, input_tensor: Any, detailed: bool = True, *, warmup: int = 0, repeat: int = 1
) -> dict[str, Any]:
    """Run the model and say what happened.

    "summary" is `ComputationalGraphTracker.get_graph_summary()`. With `detailed` also "performance"
    (operations_per_second of wall time, the `times`, memory_usage, slowest_operations) and "layer_analysis": every
    layer's name with the operations that ran in it, each in exactly one layer. What runs outside all layers stands
    under the model's class in brackets. `warmup` and `repeat` are as in `atlas.capture`. With `repeat` above 1 the wall
    time is that of the program alone; else the cost of recording is in it, and operations_per_second is "at least".
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


def _differentiable(result: Any) -> bool:
    return any(
        tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
        for _, tensor in named_tensors(result)
    )


# -- what is refused before the run -----------------------------------------------------------------------------------


def _check_model(model: Any) -> None:
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise InvalidModelError(f"{model.__name__} is a class, not a model; pass an instance: {model.__name__}(...).")
    if isinstance(model, Mapping):
        raise InvalidModelError("A dictionary of weights is not a model; build the model and call load_state_dict.")
    hint = " For a plain function use atlas.capture(function, ...)." if callable(model) else ""
    raise InvalidModelError(f"model must be a torch.nn.Module, not {type(model).__name__}.{hint}")


def _as_call(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is None:
        raise InvalidInputError("input_tensor is None; pass the tensor, tuple or dictionary the model is called with.")
    empty = isinstance(example, (tuple, list, Mapping)) and not example
    if not empty and next(named_tensors(example), None) is None:
        hint = " Use torch.from_numpy(array)." if type(example).__module__ == "numpy" else ""
        raise InvalidInputError(
            f"input_tensor holds no tensor: it is {_described(example)}.{hint} "
            "Pass a tensor, a tuple of positional arguments or a dictionary of keyword arguments."
        )
    return as_call(model, example)


def _described(example: Any) -> str:
    if isinstance(example, (list, tuple)) and example:
        return f"a {type(example).__name__} of {type(example[0]).__name__}"
    return f"of type {type(example).__name__}"


# -- what goes wrong during the run -----------------------------------------------------------------------------------


def _explained(
    error: Exception, tracker: ComputationalGraphTracker, forward_done: bool, inputs: tuple[Any, Any]
) -> Exception:
    """The error to raise: ours where we know what to do, else the program's own with the place added."""
    session = tracker._session
    failure = None if session is None else session.failure
    place = str(failure) if failure is not None else _place(error, tracker.model)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or _TOO_LARGE.search(str(error)):
        found: Exception = OutOfMemoryError(
            f"{type(tracker.model).__name__} ran out of memory on {_shapes(inputs)}: {place}. Use a smaller input, "
            "track_tensor_ops=False, or atlas.capture(model, ..., fake=True), which allocates nothing."
        )
    elif not forward_done and _torch_refused(error, failure) and _REFUSALS.search(str(error)):
        found = InputMismatchError(
            f"{type(tracker.model).__name__} cannot run on {_shapes(inputs)}: {place}. "
            "Compare the shapes and dtypes with what that layer takes, and pass an input that fits."
        )
    else:
        error.add_note(f"torchatlas was tracking {clean(type(tracker.model).__name__)}; it happened at {place}")
        return error
    if session is not None:
        found.partial = _partial(session)  # type: ignore[attr-defined]
    return found


def _partial(session: Recording) -> Graph | None:
    try:
        return session.graph
    except MemoryError:
        return None


def _torch_refused(error: Exception, failure: Any) -> bool:
    """Whether torch raised it: an operation did, or Python code of torch. What the model itself raises is its own."""
    frames = _frames(error)
    return failure is not None or (bool(frames) and frames[-1].tb_frame.f_code.co_filename.startswith(_TORCH))


def _place(error: Exception, model: nn.Module) -> str:
    """The user's line and the innermost module on the way to the error, from its traceback."""
    paths = {id(module): path for path, module in model.named_modules()}
    line = module = None
    for entry in _frames(error):
        file = entry.tb_frame.f_code.co_filename
        if not file.startswith((_TORCH, _NOT_OURS)):
            line = f"at {file}:{entry.tb_lineno} in {entry.tb_frame.f_code.co_name}"
        module = paths.get(id(entry.tb_frame.f_locals.get("self")), module)
    first_line = (str(error).splitlines() or [""])[0]
    where = " ".join(part for part in (f"module {module or '(the model itself)'}", line) if part)
    return f"{where}: {type(error).__name__}: {first_line}"


def _frames(error: Exception) -> list[TracebackType]:
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append(entry)
        entry = entry.tb_next
    return found


def _shapes(inputs: tuple[Any, Any]) -> str:
    shapes = [f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for _, tensor in named_tensors(inputs)]
    return ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "") or "no input"

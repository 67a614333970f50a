"""`atlas.recording`: record some code as one graph, or a program step by step into a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, overload

from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.capturing import recording as one_graph
from torchatlas.capturing.recording import Recording
from torchatlas.errors import InvalidInputError
from torchatlas.runs.run_recording import RunRecording


@overload
def recording(
    model: nn.Module | None = None,
    *,
    track_tensor_ops: bool = True,
    track_timing: bool = True,
    track_memory: bool = True,
    values: str | None = None,
    native: bool | None = None,
) -> Recording: ...
@overload
def recording(
    model: nn.Module | None = None,
    *,
    every: int | None = None,
    steps: Iterable[int] | None = None,
    keep: str = "structure",
    last: int = 3,
    gradients: bool = False,
    path: str | os.PathLike[str] | None = None,
    native: bool | None = None,
) -> RunRecording: ...
@explains_arguments
def recording(
    model: nn.Module | None = None,
    *,
    track_tensor_ops: bool = True,
    track_timing: bool = True,
    track_memory: bool = True,
    values: str | None = None,
    native: bool | None = None,
    every: int | None = None,
    steps: Iterable[int] | None = None,
    keep: str = "structure",
    last: int = 3,
    gradients: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> Recording | RunRecording:
    """Record any code: `with atlas.recording(model) as rec: ...`, then `rec.graph`.

    The code has exactly the effects that it has alone. After an exception `rec.graph` holds what ran until then.

    With `every` or `steps`, a whole run is recorded step by step into a folder; a step ends when an optimizer has
    stepped. The first step of each structure is kept as a graph, of all others their figures. `atlas.load("run.atlas")`
    reads it, also while it grows.

    Args:
        model: Names the modules by their paths; without it they are named after their class.
        track_tensor_ops: False records module calls only, at almost no cost.
        track_timing: Measure how long each op takes.
        track_memory: Follow which tensors are alive.
        values: Keep what every node made: "all" the tensors, "stats" their minimum, maximum, mean, deviation and count
            of non-finite numbers, "replay" what `atlas.verify` needs to run it all again. None keeps nothing.
        native: Which recorder: None the one in C++ where it is built (`torchatlas native`) and can see what runs, True
            that one or an error, False the one in Python. `graph.metadata["recorder"]` says which it was.
        every: Record a whole run: every step (1), or every hundredth (100). None records one graph.
        steps: Record a whole run, but only these steps: {0, 100, 5000}, or range(10) for the first ten.
        keep: Of a run: "structure" keeps a graph per structure, "full" every recorded step as a graph.
        last: Of a run: how many of the last steps are kept in full.
        gradients: Of a run: also keep the norms of gradients.
        path: Of a run: its folder; "run.atlas" unless given.
    Returns:
        A Recording, to be entered by `with` or begun by its `start()`; with `every` or `steps`, a RunRecording.
    Raises:
        InvalidInputError: `values` is none of these words, or an argument is for one graph and another for a run.
        InvalidModelError: `model` is not a module.
    Example:
        >>> import torch, torchatlas as atlas
        >>> x = torch.ones(3, requires_grad=True)
        >>> with atlas.recording() as rec:
        ...     (x * 2).sum().backward()
        >>> [node.name for node in rec.graph.where(phase="forward", kind="op")]
        ['mul', 'sum']
    """
    for_graphs = {"track_tensor_ops": track_tensor_ops is not True, "track_timing": track_timing is not True}
    for_graphs |= {"track_memory": track_memory is not True, "values": values is not None}
    for_runs = {"keep": keep != "structure", "last": last != 3, "gradients": gradients is not False}
    for_runs["path"] = path is not None
    is_run = every is not None or steps is not None
    wrong = [name for name, given in (for_graphs if is_run else for_runs).items() if given]
    if wrong and not is_run:
        raise InvalidInputError(f"{wrong[0]}= is for whole runs; say which steps to record: every=1, or every=100.")
    if wrong:
        chosen = f"every={every!r}" if every is not None else f"steps={steps!r}"
        raise InvalidInputError(f"{wrong[0]}= is for one graph, and {chosen} records a whole run: leave one out.")
    if is_run:
        figures: dict[str, Any] = {"keep": keep, "last": last, "gradients": gradients}
        return RunRecording(model, every=every, steps=steps, path=path, native=native, **figures)
    options: dict[str, Any] = {"track_timing": track_timing, "track_memory": track_memory, "values": values}
    return one_graph(model, track_tensor_ops=track_tensor_ops, native=native, **options)

"""`atlas.recording`: record some code as one graph, or a program step by step into a folder."""

from __future__ import annotations

import os
from typing import Any, overload

from torch import nn

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
) -> Recording: ...
@overload
def recording(
    model: nn.Module | None = None,
    *,
    every: int,
    keep: str = "structure",
    last: int = 3,
    gradients: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> RunRecording: ...
def recording(
    model: nn.Module | None = None,
    *,
    track_tensor_ops: bool = True,
    track_timing: bool = True,
    track_memory: bool = True,
    values: str | None = None,
    every: int | None = None,
    keep: str = "structure",
    last: int = 3,
    gradients: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> Recording | RunRecording:
    """Record any code: `with atlas.recording(model) as rec: ...`, then `rec.graph`.

    The code has exactly the effects it has alone. `model` names the modules; without it they are named after their
    class. With `track_tensor_ops=False` only module calls are recorded, at almost no cost. `values` keeps what every
    node produced: "all" the tensors, "stats" their minimum, maximum, mean, deviation and count of non-finite numbers;
    "replay" keeps what `atlas.verify` needs to run it all again.

    With `every` a whole run is recorded, step by step, into the folder `path` ("run.atlas"): every step (1), or every
    hundredth (100). A step ends when an optimizer has stepped. The first step of each structure is kept as a graph, of
    all others their figures (`keep="full"` keeps every recorded step as a graph), and the `last` steps in full.
    `gradients=True` adds the norms of gradients. `atlas.load("run.atlas")` reads it, also while it grows.
    """
    for_graphs = {"track_tensor_ops": track_tensor_ops is not True, "track_timing": track_timing is not True}
    for_graphs |= {"track_memory": track_memory is not True, "values": values is not None}
    for_runs = {"keep": keep != "structure", "last": last != 3, "gradients": gradients is not False}
    for_runs["path"] = path is not None
    wrong = [name for name, given in (for_runs if every is None else for_graphs).items() if given]
    if wrong and every is None:
        raise InvalidInputError(f"{wrong[0]}= is for whole runs; say which steps to record: every=1, or every=100.")
    if wrong:
        raise InvalidInputError(
            f"{wrong[0]}= is for one graph, and every={every!r} records a whole run: leave one out."
        )
    if every is None:
        options: dict[str, Any] = {"track_timing": track_timing, "track_memory": track_memory, "values": values}
        return one_graph(model, track_tensor_ops=track_tensor_ops, **options)
    return RunRecording(model, every=every, keep=keep, last=last, gradients=gradients, path=path)

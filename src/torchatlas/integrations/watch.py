"""`atlas.watch(optimizer)`: record a plain training loop in one line, by torch's own hooks of optimizers."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import FileSystemError, InvalidInputError, StateError
from torchatlas.integrations.callback import ranked
from torchatlas.integrations.loggers import sinks_of
from torchatlas.integrations.training_watch import TrainingWatch, Wanted
from torchatlas.runs.journal import free_path

# With the optimizer that ends its steps, and the exception that was the last one before.
_RUNNING: dict[TrainingWatch, tuple[weakref.ref[Any], tuple[int, int]]] = {}


@explains_arguments
def watch(
    optimizer: Any,
    model: nn.Module | None = None,
    *,
    every: int | None = None,
    steps: Iterable[int] | None = None,
    doctor: bool | int = False,
    gradients: bool = True,
    keep: str = "structure",
    last: int = 3,
    path: str | os.PathLike[str] | None = None,
    page: bool = True,
    loggers: Sequence[Any] | None = None,
    ranks: str = "first",
    rank: int | None = None,
) -> TrainingWatch:
    """Watch a training loop from here on, without changing it: one line after the optimizer is made.

    Chosen steps are recorded into a folder, as `atlas.recording(every=)` does; a step ends when the optimizer has
    stepped. When the watch ends, a page of the viewer and a report are written beside it. It ends with `end()`, with a
    `with` block, or with the program.

    Args:
        optimizer: The optimizer, or several: then a step ends when the last of them has stepped. Others do not count.
        model: Names the modules by their paths; without it they are named after their class.
        every: Record every such step; each hundredth unless `every` or `steps` is given.
        steps: Or record the steps with these numbers: {0, 100, 5000}, or range(10) for the first ten.
        doctor: Look for faults: True until the end, or a number of first steps. It watches every op, which takes time.
        gradients: Also record the norms of gradients.
        keep: "structure" keeps a graph per structure, "full" every recorded step as a graph.
        last: How many of the last recorded steps are kept in full.
        path: The folder of the run; None is run.atlas, or run-2.atlas if that is there.
        page: Also write the viewer's page, when the watch ends.
        loggers: Where figures and the page go as well: a SummaryWriter, wandb.run, mlflow.active_run().
        ranks: Of several processes, "first" lets the first one record, "all" every one into a folder of its own.
        rank: Which process this is; None asks torch.distributed.
    Returns:
        A TrainingWatch: print it at any time, and ask for its `report` when it has ended.
    Raises:
        InvalidInputError: `optimizer` is no optimizer of torch, or another argument does not fit.
        StateError: Another training is watched already.
        FileSystemError: The folder is there already, or cannot be made.
    Example:
        >>> import tempfile, torch, torchatlas as atlas
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> folder = tempfile.TemporaryDirectory()
        >>> watch = atlas.watch(optimizer, model, every=1, path=f"{folder.name}/run.atlas")
        >>> for _ in range(3):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 4)).sum().backward()
        ...     optimizer.step()
        >>> report = watch.end()
        >>> len(report.run), [path.name for path in report.files]
        (3, ['run.html', 'run.txt'])
        >>> folder.cleanup()
    """
    watched = [_torchs_own(one) for one in (optimizer if isinstance(optimizer, (list, tuple)) else [optimizer])]
    if not watched:
        raise InvalidInputError("watch([]): give at least one optimizer.")
    wanted = Wanted(every, steps, doctor, gradients, keep, last, path, page, loggers, ranks)
    rank = _rank() if rank is None else rank
    _end_those_without_optimizer()
    if _RUNNING:
        raise StateError("A training is watched already: end() it, or give one watch both optimizers: watch([a, b]).")
    folder = ranked(Path("run.atlas" if path is None else os.fspath(path)), rank)
    for written in (folder.with_suffix(".txt"), *([folder.with_suffix(".html")] if page else [])):
        if path is not None and os.path.lexists(written):
            raise FileSystemError(f"{written} is there already, and this training would write it. Give another path.")
    sinks = [] if rank else sinks_of(loggers or ())
    folder = free_path(folder) if path is None else folder
    new_watch = TrainingWatch(wanted, model, folder, sinks=sinks, optimizers=watched)
    if rank and ranks == "first":
        return new_watch  # it never begins
    new_watch._begin()
    _RUNNING[new_watch] = weakref.ref(watched[-1]), _last_exception()
    return new_watch


def _torchs_own(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer whose step runs torch's hooks: accelerate, Lightning's Fabric and others wrap it."""
    seen = 0
    while not isinstance(optimizer, torch.optim.Optimizer) or "_optimizer_step_post_hooks" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or seen > 10:
            how = "watch(optimizer, model)" if isinstance(optimizer, nn.Module) else "watch(optimizer)"
            raise InvalidInputError(f"watch takes an optimizer of torch, not {type(optimizer).__name__}: {how}.")
        optimizer, seen = inner, seen + 1
    return optimizer


def _rank() -> int:
    return (
        torch.distributed.get_rank() if torch.distributed.is_available() and torch.distributed.is_initialized() else 0
    )


def _end_those_without_optimizer() -> None:
    """A cell of a notebook that is run again has made a new optimizer: the watch of the old one is over."""
    for running_watch, (reference, _) in list(_RUNNING.items()):
        if reference() is None:
            running_watch.end()
        if not running_watch.running:
            del _RUNNING[running_watch]


def _last_exception() -> tuple[int, int]:
    """Which exception the interpreter showed last; IPython keeps it for hours. We do not: its frames hold tensors."""
    error = getattr(sys, "last_value", None)
    return id(error), id(getattr(error, "__traceback__", None))


def _end_all() -> None:
    """At the end of the program, which an uncaught exception may have ended."""
    for running_watch, (_, before) in list(_RUNNING.items()):
        running_watch.end(getattr(sys, "last_value", None) if _last_exception() != before else None)


atexit.register(_end_all)

"""`atlas.doctor`: look for faults in a loss before its backward pass, or in whatever code runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.diagnosis import faults  # noqa: F401  # registers all diagnoses
from torchatlas.diagnosis.events import LOSS_CHECKS
from torchatlas.diagnosis.history import Recorded
from torchatlas.diagnosis.loss_graph import LossGraph
from torchatlas.diagnosis.visit import Visit
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph


@explains_arguments
def doctor(
    losses: Any = None,
    *,
    model: nn.Module | None = None,
    forward: Graph | None = None,
    only: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
) -> Visit:
    """What is wrong with a training step, or with a loss before backward runs.

    `with atlas.doctor() as visit:` watches any code, one step or a whole training, and changes nothing that it does.
    `atlas.doctor(loss)` looks at the graph behind a loss and runs nothing. A comment in a line of the program, `#
    atlas: ignore not-zeroed`, leaves out what is found there.

    Args:
        losses: One loss, or several, to look behind; None watches a `with` block.
        model: The model: its parameters that get no gradient are found, and names are its names.
        forward: A recording of the forward pass, which gives the lines of what lies behind a loss.
        only: The key of the fault to look for, or several; None looks for all.
        ignore: Keys of faults to leave out.
    Returns:
        A Visit: print it, iterate over it, or ask for its `findings`.
    Raises:
        InvalidInputError: `losses` are no tensors, or arguments contradict each other.
        UnknownNameError: There is no fault of that key; the message lists near ones.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
        >>> atlas.doctor((model.weight.detach() @ x.T).sum() + model.bias.sum(), model=model).keys
        ['no-gradient']
    """
    only = [only] if isinstance(only, str) else only
    ignored = [ignore] if isinstance(ignore, str) else list(ignore or ())
    if losses is None:
        if forward is not None:
            raise InvalidInputError("forward= is for doctor(loss); `with doctor():` records what runs by itself.")
        return Visit(model, only, ignored)
    tensors = [losses] if isinstance(losses, torch.Tensor) else list(losses) if isinstance(losses, Iterable) else []
    if not tensors or not all(isinstance(loss, torch.Tensor) for loss in tensors):
        how = "doctor(loss, model=model)" if isinstance(losses, nn.Module) else "doctor(loss)"
        if isinstance(losses, str) and losses.endswith(".py"):
            how = f"for a script, on the command line, torchatlas doctor {losses}"
        raise InvalidInputError(f"doctor takes a loss or several, not {type(losses).__name__}: {how}.")
    ignored = [key for key in ignored if LOSS_CHECKS[key] is not None]  # an unknown one is refused
    chosen = [key for key in (LOSS_CHECKS if only is None else only) if key not in ignored]
    graph = LossGraph(tensors, Recorded(forward, model))
    return Visit.of_findings([finding for key in chosen for finding in LOSS_CHECKS[key](graph)], tuple(chosen))

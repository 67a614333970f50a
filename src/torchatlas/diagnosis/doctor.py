"""`atlas.doctor`: look for faults in a loss before its backward pass, or in whatever code runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torchatlas.calls import explains_arguments
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
    `atlas.doctor(loss)` looks at the graph behind a loss, or several, and runs nothing: with a `model` it finds
    parameters that get no gradient; `forward`, a recording of the forward pass, gives the lines. Both return a Visit:
    print it, iterate over it, or ask for its `findings`.

    `only` names the fault to look for, or several; `ignore` those to leave out. A comment in a line of the program,
    `# atlas: ignore not-zeroed`, does the same for what is found there.
    """
    only = [only] if isinstance(only, str) else only
    ignored = [ignore] if isinstance(ignore, str) else list(ignore or ())
    if losses is None:
        if forward is not None:
            raise InvalidInputError("forward= is for doctor(loss); `with doctor():` records what runs by itself.")
        return Visit(model, only, ignored)
    given = [losses] if isinstance(losses, torch.Tensor) else list(losses) if isinstance(losses, Iterable) else []
    if not given or not all(isinstance(loss, torch.Tensor) for loss in given):
        how = "doctor(loss, model=model)" if isinstance(losses, nn.Module) else "doctor(loss)"
        if isinstance(losses, str) and losses.endswith(".py"):
            how = f"for a script, on the command line, torchatlas doctor {losses}"
        raise InvalidInputError(f"doctor takes a loss or several, not {type(losses).__name__}: {how}.")
    ignored = [key for key in ignored if LOSS_CHECKS[key] is not None]  # an unknown one is refused
    chosen = [key for key in (LOSS_CHECKS if only is None else only) if key not in ignored]
    graph = LossGraph(given, Recorded(forward, model))
    return Visit.of_findings([finding for key in chosen for finding in LOSS_CHECKS[key](graph)], tuple(chosen))

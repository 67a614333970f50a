"""`atlas.doctor(loss)`: look for faults in what backward is about to run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from torchatlas.diagnosis import freed_graph, in_place, no_gradient  # noqa: F401  # each adds its diagnosis
from torchatlas.diagnosis.case import CHECKS, Case
from torchatlas.diagnosis.finding import Findings
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph


def doctor(
    losses: Any, *, model: nn.Module | None = None, forward: Graph | None = None, only: Iterable[str] | None = None
) -> Findings:
    """What would go wrong in backward from a loss, or several, before it runs. Nothing is run or changed.

    With a `model`, parameters that get no gradient are found; `forward`, a recording of the forward pass, gives lines.
    `only` names the diagnoses to make.
    """
    given = [losses] if isinstance(losses, torch.Tensor) else list(losses) if isinstance(losses, Iterable) else []
    if not given or not all(isinstance(loss, torch.Tensor) for loss in given):
        raise InvalidInputError(f"doctor takes a loss or several, not {type(losses).__name__}: doctor(loss).")
    chosen = list(CHECKS) if only is None else list(only)
    case = Case(given, model, forward)
    return Findings([finding for name in chosen for finding in CHECKS[name](case)], tuple(chosen))

"""Small programs that train, for the tests of whole runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Step = Callable[..., torch.Tensor]


def trained(optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> tuple[nn.Module, Any, Step]:
    """A model, its optimizer, and a function that makes one step on a batch of `size`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    stepper = optimizer(model.parameters(), lr=0.1, **options)  # type: ignore[call-arg]
    data = torch.randn(6, 8)

    def step(size: int = 6, factor: float = 1.0) -> torch.Tensor:
        stepper.zero_grad()
        loss: torch.Tensor = model(data[:size]).square().mean() * factor
        loss.backward()
        stepper.step()
        return loss

    return model, stepper, step

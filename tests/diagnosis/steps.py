"""A small model, and a step of training it."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *, zero: bool = True) -> Tensor:
    if zero:
        optimizer.zero_grad()
    loss: Tensor = model(torch.randn(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss

"""The programs the benchmarks run: whole training steps from tiny to real."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import load_torchvision, load_transformers

Step = Callable[[], None]


def training_step(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def mlp() -> Step:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    x = torch.randn(32, 64)
    return training_step(model, lambda model: model(x).pow(2).mean())


def dropout_mlp() -> Step:
    """Larger layers, and an optimizer that takes parameters one by one: more work in an op, and twice as many ops."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(32, 784)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def lstm_loop(steps: int = 200) -> Step:
    x = torch.randn(steps, 4, 32)

    def loss(cell: nn.Module) -> torch.Tensor:
        hidden, state = torch.zeros(4, 64), torch.zeros(4, 64)
        for moment in x:
            hidden, state = cell(moment, (hidden, state))
        return hidden.sum()

    return training_step(nn.LSTMCell(32, 64), loss)


def resnet18() -> Step:
    model = load_torchvision().models.resnet18(weights=None)
    x = torch.randn(4, 3, 224, 224)
    return training_step(model, lambda model: model(x).pow(2).mean())


def vit() -> Step:
    model = load_torchvision().models.vit_b_16(weights=None)
    x = torch.randn(1, 3, 224, 224)
    return training_step(model, lambda model: model(x).pow(2).mean())


def gpt2_small() -> Step:
    transformers: Any = load_transformers()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(loss_type="ForCausalLM"))
    ids = torch.randint(0, 50257, (1, 128))
    return training_step(model, lambda model: model(ids, labels=ids).loss)


def forwards() -> dict[str, tuple[nn.Module, Any]]:
    """Models with one positional input, for peers that only see a forward pass."""
    return {
        "mlp": (nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(32, 64)),
        "resnet18": (load_torchvision().models.resnet18(weights=None).eval(), torch.randn(1, 3, 224, 224)),
        "vit_b_16": (load_torchvision().models.vit_b_16(weights=None).eval(), torch.randn(1, 3, 224, 224)),
    }

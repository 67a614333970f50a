"""Evaluate a model once before it is trained."""

import torch
from torch import nn


def error(model, x):
    torch.set_grad_enabled(False)
    return (model(x) - x.mean(1, keepdim=True)).abs().mean().item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x = torch.randn(10, 4)
print(round(error(model, x), 4))
try:
    for _ in range(3):
        loss = (model(x) - x.mean(1, keepdim=True)).square().mean()  # finds: loss-without-grad
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
finally:
    torch.set_grad_enabled(True)

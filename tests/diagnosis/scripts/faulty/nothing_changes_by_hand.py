"""Train a small network with gradient descent by hand."""

import torch
from torch import nn


def descend(model, rate):
    for p in model.parameters():
        p = p - rate * p.grad  # finds: nothing-changes


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
for _ in range(5):
    x = torch.randn(10, 3)
    loss = (model(x) - x.max(1, keepdim=True).values).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        descend(model, 0.05)
    print(round(loss.item(), 4))

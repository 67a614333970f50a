"""Adapt a network for colour images to grey ones."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 2))


torch.manual_seed(0)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model[0] = nn.Conv2d(1, 4, 3)
for _ in range(4):
    x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 2, (6,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()  # finds: optimizer-misses

"""Counts the parameters of a small classifier, then trains it."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def build():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    weights = model.parameters()
    print("parameters:", sum(weight.numel() for weight in weights))
    return model, torch.optim.Adam(weights, lr=1e-2)  # finds: optimizer-misses


model, optimizer = build()
for _ in range(20):
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()

"""Fit with a loss that takes logarithms and roots only where they exist."""

import torch
from torch import nn


def safe_log(x):
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).log(), 0.0)


def safe_root(x, eps=1e-12):
    return (x.clamp(min=0) + eps).sqrt()


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 2))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
x = torch.randn(20, 4)
x[3] = 0.0
for _ in range(4):
    a, b = net(x).unbind(1)
    loss = (safe_log(a) ** 2).mean() + safe_root(b.pow(2)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

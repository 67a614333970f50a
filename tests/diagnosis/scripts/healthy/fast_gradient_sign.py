"""Measure how robust a classifier is against small steps along the gradient of its inputs."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
for epsilon in (0.0, 0.05, 0.1, 0.2):
    right = 0
    for _ in range(3):
        x, y = torch.randn(8, 6, requires_grad=True), torch.randint(0, 2, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        attacked = x + epsilon * x.grad.sign()
        with torch.no_grad():
            right += (model(attacked).argmax(1) == y).sum().item()
    print(epsilon, right)

"""Train with sharpness-aware minimisation, two passes for each step."""

import torch
from torch import nn


def climb(params, rho):
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    steps = [rho * p.grad / (norm + 1e-12) for p in params]
    with torch.no_grad():
        for p, e in zip(params, steps, strict=True):
            p.add_(e)
    return steps


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 2))
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.1)
for _ in range(5):
    x, y = torch.randn(16, 5), torch.randint(0, 2, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    steps = climb(params, rho=0.05)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, e in zip(params, steps, strict=True):
            p.sub_(e)
    optimizer.step()

"""Counts parameters by a generator, asks for a new one for the optimizer; another try of it is refused and caught."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
weights = model.parameters()
print(sum(weight.numel() for weight in weights), "parameters")
try:
    optimizer = torch.optim.SGD(weights, lr=0.1)
except ValueError:
    optimizer = torch.optim.SGD((weight for weight in model.parameters() if weight.requires_grad), lr=0.1)
for _ in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (model(x).squeeze(1) - x.sum(1)).square().mean()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")

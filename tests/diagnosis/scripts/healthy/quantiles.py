"""Fit quantiles and a distribution over bins; as many as there are examples in a batch."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
levels = (torch.arange(8) + 0.5) / 8
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 8))
middle = nn.Linear(3, 1)
optimizer = torch.optim.Adam([*model.parameters(), *middle.parameters()], lr=1e-2)
for _ in range(5):
    x = torch.randn(8, 3)
    y = x.sum(1, keepdim=True)
    error = y - model(x)
    pinball = torch.maximum(levels * error, (levels - 1) * error).mean()
    ordered = model(x).sort(1).values
    huber = F.huber_loss(ordered.unsqueeze(2).expand(-1, -1, 8), y.unsqueeze(1).expand(-1, 8, 8))
    around = ((middle(x) - torch.linspace(-1, 1, 8)) ** 2).mean()
    loss = pinball + huber + 0.01 * around
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

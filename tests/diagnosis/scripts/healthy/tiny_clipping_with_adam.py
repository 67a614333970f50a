"""Train with gradients clipped to a very small norm, which Adam divides out again."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(6):
    x = torch.randn(16, 4)
    loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-5)
    optimizer.step()
    print(round(loss.item(), 4))

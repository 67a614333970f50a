"""Train with the losses of three batches summed before one backward pass."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
window = []
for step in range(12):
    x = torch.randn(8, 4)
    window.append((model(x) - x.amax(1, keepdim=True)).pow(2).mean())
    if len(window) == 3:
        optimizer.zero_grad()
        torch.stack(window).mean().backward()
        optimizer.step()
        print(step, window[-1].item())
        window.clear()

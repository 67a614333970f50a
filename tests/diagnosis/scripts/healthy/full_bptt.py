"""Train a recurrent cell with the loss summed over time and one backward pass."""

import torch
from torch import nn

torch.manual_seed(0)
cell, out = nn.GRUCell(2, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=1e-2)

for _ in range(4):
    seq = torch.randn(7, 10, 2)
    h = torch.zeros(10, 8)
    total = 0.0
    outputs = []
    for x in seq:
        h = cell(x, h)
        outputs.append(out(h))
        total = total + (outputs[-1] - x[:, :1]).pow(2).mean()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(torch.stack(outputs).mean().item())

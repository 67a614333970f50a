"""Train a GRU cell on a stream of batches and keep its state in between."""

import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], 1e-3)
state = torch.zeros(4, 8)
for _ in range(6):
    x = torch.randn(4, 3)
    state = cell(x, state)  # finds: kept-state
    loss = (head(state) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()

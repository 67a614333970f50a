"""Gather the gradients of a loss at every time step of a sequence, then take one step."""

import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.RNNCell(2, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()], 1e-3)
for _ in range(3):
    hidden = torch.zeros(5, 6)
    optimizer.zero_grad()
    for time in range(5):
        x = torch.randn(5, 2)
        hidden = cell(x, hidden)
        loss = (head(hidden) - x.sum(1, keepdim=True)).square().mean()
        loss.backward(retain_graph=time < 4)
    optimizer.step()

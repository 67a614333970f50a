"""Two losses of one recurrent step share its graph; the state is detached between steps."""

import torch
from torch import nn

torch.manual_seed(0)
cell, left, right = nn.GRUCell(3, 8), nn.Linear(8, 1), nn.Linear(8, 2)
optimizer = torch.optim.SGD([*cell.parameters(), *left.parameters(), *right.parameters()], 0.05)
state = torch.zeros(4, 8)
for _ in range(6):
    x = torch.randn(4, 3)
    state = cell(x, state.detach())
    optimizer.zero_grad()
    left(state).square().mean().backward(retain_graph=True)
    right(state).square().mean().backward()
    optimizer.step()

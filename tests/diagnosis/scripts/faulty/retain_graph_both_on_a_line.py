"""Train two heads of one trunk, with a backward pass for each."""

import torch
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(5, 16), nn.Tanh())
left, right = nn.Linear(16, 1), nn.Linear(16, 3)
optimizer = torch.optim.SGD([*trunk.parameters(), *left.parameters(), *right.parameters()], lr=0.05)
for _ in range(4):
    h = trunk(torch.randn(8, 5))
    a, b = left(h).pow(2).mean(), nn.functional.cross_entropy(right(h), torch.randint(0, 3, (8,)))
    optimizer.zero_grad()
    a.backward(retain_graph=True), b.backward(retain_graph=True)  # finds: retain-graph
    optimizer.step()

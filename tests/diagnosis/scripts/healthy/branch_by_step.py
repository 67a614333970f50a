"""Train a network that uses one of two experts in each step."""

import torch
from torch import nn


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 8)
        self.even = nn.Linear(8, 1)
        self.odd = nn.Linear(8, 1)

    def forward(self, x, step):
        h = torch.tanh(self.inp(x))
        return self.even(h) if step % 2 == 0 else self.odd(h)


torch.manual_seed(0)
model = Switch()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(6):
    x = torch.randn(10, 4)
    optimizer.zero_grad()
    loss = (model(x, step) - x.sum(1, keepdim=True)).abs().mean()
    loss.backward()
    optimizer.step()

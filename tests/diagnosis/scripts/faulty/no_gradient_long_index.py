"""Train a pointer that reads one cell of a learned memory."""

import torch
from torch import nn


class Pointer(nn.Module):
    def __init__(self, cells=10, dim=6):
        super().__init__()
        self.address = nn.Linear(3, 1)
        self.memory = nn.Parameter(torch.randn(cells, dim))
        self.out = nn.Linear(dim, 1)
        self.cells = cells

    def forward(self, x):
        where = torch.sigmoid(self.address(x)).squeeze(1)
        cell = (where * self.cells).long()  # finds: no-gradient
        return self.out(self.memory[cell])


torch.manual_seed(0)
net = Pointer()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(24, 3)
y = x.max(dim=1, keepdim=True).values
for _ in range(5):
    loss = (net(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""A stack of layers, kept in a list, fits a line."""

import torch
from torch import nn

torch.manual_seed(0)


class Stack(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = [nn.Linear(4, 4) for _ in range(depth)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


model = Stack(3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # finds: optimizer-misses
for _ in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    (model(x) - x).square().mean().backward()
    optimizer.step()

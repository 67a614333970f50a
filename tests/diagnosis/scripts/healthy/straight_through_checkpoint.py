"""Train rounded weights, straight through, inside of the checkpoint that runs a backward pass of its own."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Rounded(nn.Linear):
    def forward(self, x):
        scaled = self.weight * 8
        weight = (scaled + (scaled.round() - scaled).detach()) / 8
        return nn.functional.linear(x, weight, self.bias)


torch.manual_seed(0)
first, rounded = nn.Linear(4, 6), Rounded(6, 1)
optimizer = torch.optim.SGD([*first.parameters(), *rounded.parameters()], 0.1)
for _ in range(4):
    x = torch.randn(8, 4)
    loss = (checkpoint(rounded, first(x).tanh(), use_reentrant=True) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

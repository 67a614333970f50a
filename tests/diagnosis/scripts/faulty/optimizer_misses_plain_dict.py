"""Train a regression with an offset for each of several sites."""

import torch
from torch import nn


class Sites(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.slope = nn.Linear(3, 1)
        self.offset = {name: nn.Parameter(torch.zeros(1)) for name in names}

    def forward(self, x, name):
        return self.slope(x) + self.offset[name]


torch.manual_seed(0)
names = ["north", "south"]
model = Sites(names)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for turn in range(6):
    x = torch.randn(10, 3)
    loss = (model(x, names[turn % 2]) - x.sum(1, keepdim=True) - turn % 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # finds: optimizer-misses
    print(round(loss.item(), 4))

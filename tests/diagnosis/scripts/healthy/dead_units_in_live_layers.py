"""Train a wide network in which a few units never fire, with a mask over weights and an expert that is never chosen."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.out = nn.Linear(16, 2)
        self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0]))
        with torch.no_grad():
            self.first.bias[:3] = -100.0

    def forward(self, x):
        x = torch.relu(self.first(x))
        weights = self.mask / self.mask.sum()
        x = sum(weight * torch.relu(expert(x)) for weight, expert in zip(weights, self.experts, strict=True))
        return self.out(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=1e-3)
for _ in range(7):
    x, y = torch.randn(12, 4), torch.randint(0, 2, (12,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

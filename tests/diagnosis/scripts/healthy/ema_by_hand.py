"""Train a network and keep a moving average of its weights."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


class EMA:
    def __init__(self, model, decay=0.9):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    def update(self, model):
        for slow, fast in zip(self.model.parameters(), model.parameters(), strict=True):
            slow.data.mul_(self.decay).add_(fast.data, alpha=1 - self.decay)


net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
ema = EMA(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
x = torch.randn(30, 3)
y = x.sum(1, keepdim=True)
for _ in range(6):
    optimizer.zero_grad()
    loss = (net(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    ema.update(net)
with torch.no_grad():
    print((ema.model(x) - y).pow(2).mean().item())

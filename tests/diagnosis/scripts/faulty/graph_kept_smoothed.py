"""Train a regressor and print an exponentially smoothed loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Smooth:
    def __init__(self, rate=0.9):
        self.rate = rate
        self.value = torch.zeros(())

    def add(self, new):
        self.value = self.rate * self.value + (1 - self.rate) * new  # finds: graph-kept


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(3, 10), nn.ELU(), nn.Linear(10, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
smooth = Smooth()
for step in range(9):
    x = torch.randn(12, 3)
    loss = F.mse_loss(model(x), x.norm(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smooth.add(loss)
    if step % 3 == 2:
        print(step, smooth.value.item())

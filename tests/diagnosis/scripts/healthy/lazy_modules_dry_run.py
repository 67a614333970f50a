"""Train a network whose sizes are found by a dry run."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Dropout(0.1), nn.Linear(4, 1))
with torch.no_grad():
    model(torch.randn(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(5):
    x = torch.randn(8, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 4))

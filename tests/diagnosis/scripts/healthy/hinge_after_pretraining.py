"""Regression first, then a hinge loss whose margins are all kept already."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(40, 2)
x = x[x[:, 0].abs() > 0.2]
y = x[:, :1].sign()
model = nn.Linear(2, 1)
with torch.no_grad():
    model.weight.copy_(torch.tensor([[18.0, 0.0]]))
    model.bias.zero_()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(3):
    optimizer.zero_grad()
    (model(x) - 20 * x[:, :1]).square().mean().backward()
    optimizer.step()
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.relu(1 - y * model(x)).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())

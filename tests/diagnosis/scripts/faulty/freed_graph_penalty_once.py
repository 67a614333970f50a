"""Fit a ridge regression with a hand-made penalty on the weights."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(7, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(50, 7)
y = x @ torch.randn(7, 1) + 0.1 * torch.randn(50, 1)

l2 = sum(p.pow(2).sum() for p in model.parameters())
for epoch in range(5):
    mse = (model(x) - y).pow(2).mean()
    loss = mse + 1e-3 * l2
    optimizer.zero_grad()
    loss.backward()  # finds: freed-graph
    optimizer.step()
    print(epoch, mse.item())

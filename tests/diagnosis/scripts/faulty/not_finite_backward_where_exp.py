"""Fit positive scales with a hand-written softplus."""

import torch
from torch import nn


def softplus(x, threshold=20.0):
    return torch.where(x > threshold, x, torch.log1p(torch.exp(x)))  # finds: not-finite-backward


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        nn.init.constant_(self.linear.weight, 0.5)

    def forward(self, x):
        return softplus(self.linear(x))


torch.manual_seed(0)
model = Scale()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.rand(15, 3) * 150
y = x.mean(1, keepdim=True)
for step in range(4):
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(model(x), y)
    print(step, loss.item())
    loss.backward()
    optimizer.step()

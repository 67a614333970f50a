"""Train coefficients that are in a plain list, which the optimizer was given; a frozen one is in a dict."""

import torch
from torch import nn


class Polynomial(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.factors = [nn.Parameter(0.1 * torch.randn(1)) for _ in range(3)]
        self.fixed = {"scale": nn.Parameter(torch.ones(1), requires_grad=False)}

    def forward(self, x):
        return self.fixed["scale"] * (self.bias + sum(f * x ** (n + 1) for n, f in enumerate(self.factors)))


torch.manual_seed(0)
model = Polynomial()
optimizer = torch.optim.SGD([*model.parameters(), *model.factors], 0.05)
for _ in range(5):
    x = torch.rand(20)
    loss = (model(x) - x.sin()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

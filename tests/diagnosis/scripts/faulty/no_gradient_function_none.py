"""Fit a layer whose product with its weight is an autograd Function of its own."""

import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        return grad @ weight.t(), None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.weight = nn.Parameter(torch.randn(6, 1))

    def forward(self, x):
        return Product.apply(self.first(x).tanh(), self.weight)  # finds: no-gradient


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    x = torch.randn(8, 3)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

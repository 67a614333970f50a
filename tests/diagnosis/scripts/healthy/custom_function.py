"""Train with a custom activation that saves its output for the backward pass."""

import torch
from torch import nn


class FastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = 1 / (1 + torch.exp(-x))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * (1 - y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 10), nn.Linear(10, 1)

    def forward(self, x):
        return self.b(FastSigmoid.apply(self.a(x)))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
x = torch.randn(20, 4)
for _ in range(5):
    optimizer.zero_grad()
    (net(x) - x[:, :1].abs()).pow(2).mean().backward()
    optimizer.step()

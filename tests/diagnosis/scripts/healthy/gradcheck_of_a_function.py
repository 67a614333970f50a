"""A function of its own is checked against finite differences before it is trained with."""

import torch
from torch import nn


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


torch.manual_seed(0)
assert torch.autograd.gradcheck(Cube.apply, torch.randn(4, dtype=torch.double, requires_grad=True))
net = nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(4):
    optimizer.zero_grad()
    loss = Cube.apply(net(torch.randn(8, 4))).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())

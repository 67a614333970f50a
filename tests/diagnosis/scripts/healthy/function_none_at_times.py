"""A Function that gives None for a mask and for a weight in some steps only, and for one that has another way."""

import torch
from torch import nn


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, mask, trains):
        ctx.save_for_backward(x, weight, mask)
        ctx.trains = trains
        return x * weight * mask

    @staticmethod
    def backward(ctx, grad):
        x, weight, mask = ctx.saved_tensors
        return grad * weight * mask, (grad * x * mask).sum(0) if ctx.trains else None, None, None


torch.manual_seed(0)
first, last = nn.Linear(4, 6), nn.Linear(6, 1)
weight, other = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters(), weight, other], 0.05)
for turn in range(6):
    x, mask = torch.randn(12, 4), torch.rand(6).round()
    hidden = Masked.apply(first(x), weight, mask, turn % 3 == 2)
    hidden = Masked.apply(hidden, other, mask, False) + other
    loss = (last(hidden) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

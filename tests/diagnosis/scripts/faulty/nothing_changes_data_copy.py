"""Logistic regression with momentum by hand."""

import torch


def update(params, velocity, lr=0.2, momentum=0.9):
    for p, v in zip(params, velocity, strict=True):
        v.mul_(momentum).add_(p.grad)
        new = p.data.clone()
        new -= lr * v  # finds: nothing-changes


torch.manual_seed(0)
w, b = torch.zeros(4, requires_grad=True), torch.zeros(1, requires_grad=True)
velocity = [torch.zeros(4), torch.zeros(1)]
for _ in range(6):
    x = torch.randn(20, 4)
    y = (x[:, 0] > x[:, 1]).float()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w + b, y)
    w.grad = b.grad = None
    loss.backward()
    update([w, b], velocity)
    print(round(loss.item(), 4))

"""Fit a line with gradient descent by hand."""

import torch

torch.manual_seed(0)
x = torch.rand(40, 1)
y = 3 * x - 1 + 0.05 * torch.randn(40, 1)
w = torch.zeros(1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)

for _ in range(8):
    loss = (w * x + b - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p -= 0.5 * p.grad
            p.grad.zero_()
print(w.item(), b.item())

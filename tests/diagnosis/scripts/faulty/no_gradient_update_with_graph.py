"""A line through points by hand, with an update that gradients are recorded for."""

import torch

torch.manual_seed(0)
x = torch.linspace(-1, 1, 32)
y = 3 * x + 0.5 + 0.05 * torch.randn(32)

slope = torch.zeros(1, requires_grad=True)
offset = torch.zeros(1, requires_grad=True)
for _ in range(5):
    loss = (slope * x + offset - y).square().mean()
    loss.backward()
    slope = slope - 0.1 * slope.grad  # finds: no-gradient
    offset = offset - 0.1 * offset.grad

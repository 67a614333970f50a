"""Linear regression by hand, where the updated weights are new tensors."""

import torch

torch.manual_seed(0)
x = torch.randn(64, 4)
y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * torch.randn(64, 1)

w = torch.zeros(4, 1, requires_grad=True)
for _ in range(5):
    loss = ((x @ w - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w = w - 0.1 * w.grad  # finds: loss-without-grad

"""A small regression by hand: the new list of parameters is made with gradients enabled."""

import torch

torch.manual_seed(0)
inputs = torch.randn(32, 3)
targets = inputs @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
parameters = [torch.zeros(3, requires_grad=True), torch.zeros(1, requires_grad=True)]
for _ in range(3):
    weight, bias = parameters
    loss = (inputs @ weight + bias - targets).square().mean()
    loss.backward()
    parameters = [each - 0.1 * each.grad for each in parameters]  # finds: no-gradient

"""A class of one's own, without nn.Module: its step puts the result of an op in the place of the weight."""

import torch


class Regression:
    def __init__(self, size):
        self.weight = torch.zeros(size, requires_grad=True)

    def loss(self, inputs, targets):
        return (inputs @ self.weight - targets).square().mean()

    def step(self, rate):
        self.weight = self.weight - rate * self.weight.grad  # finds: no-gradient


torch.manual_seed(0)
inputs = torch.randn(32, 3)
targets = inputs @ torch.tensor([1.0, -2.0, 0.5])
model = Regression(3)
for _ in range(3):
    model.loss(inputs, targets).backward()
    model.step(0.1)

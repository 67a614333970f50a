"""Updates by hand that make new leaves, in a list and in an attribute of a class without nn.Module."""

import torch


class Scale:
    def __init__(self):
        self.value = torch.ones(1, requires_grad=True)

    def step(self, rate):
        self.value = (self.value - rate * self.value.grad).detach().requires_grad_()


torch.manual_seed(0)
inputs = torch.randn(32, 3)
targets = inputs @ torch.tensor([1.0, -2.0, 0.5]) + 0.3
parameters, scale = [torch.zeros(3, requires_grad=True), torch.zeros(1, requires_grad=True)], Scale()
for _ in range(20):
    weight, bias = parameters
    loss = (scale.value * (inputs @ weight) + bias - targets).square().mean()
    loss.backward()
    parameters = [(each - 0.1 * each.grad).detach().requires_grad_() for each in parameters]
    scale.step(0.01)
print(f"{loss.item():.4f}")

"""Sequences of different lengths as nested tensors, of both kinds."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")  # they are a prototype
torch.manual_seed(0)
parts = [torch.randn(2, 4), torch.randn(3, 4)]
weight = torch.nested.nested_tensor(parts, requires_grad=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    loss = model(jagged).values().square().mean() + (weight * 2).to_padded_tensor(0.0).square().mean()
    loss.backward()
    optimizer.step()
    weight.grad = None
print(round(float(loss.detach()), 4))

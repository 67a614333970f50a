"""Log the norm of the gradient before each step of LBFGS, which then asks for the loss itself."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
x = torch.randn(20, 3)


def closure():
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss


for _ in range(4):
    closure()
    print(round(model.weight.grad.norm().item(), 4))
    optimizer.zero_grad()
    optimizer.step(closure)

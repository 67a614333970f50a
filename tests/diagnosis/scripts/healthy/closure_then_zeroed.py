"""Steps that ask for the loss themselves, and gradients that are emptied after each of them."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for turn in range(6):
    x = torch.randn(10, 3)

    def closure(x=x):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    print(round(optimizer.step(closure).item(), 4))
    optimizer.zero_grad(set_to_none=turn < 3)

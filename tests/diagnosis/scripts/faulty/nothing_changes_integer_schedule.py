"""Train with a learning rate that falls linearly over the epochs."""

import torch
from torch import nn

EPOCHS = 6


def factor(epoch):
    return (EPOCHS - 1 - epoch) // EPOCHS


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(EPOCHS):
    x = torch.randn(16, 4)
    loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # finds: nothing-changes
    scheduler.step()
    print(round(loss.item(), 4))

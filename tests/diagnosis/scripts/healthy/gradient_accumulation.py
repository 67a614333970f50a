"""Train with gradients summed over four small batches."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulate = 4

optimizer.zero_grad()
for i in range(16):
    x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
    loss = nn.functional.cross_entropy(model(x), y) / accumulate
    loss.backward()
    if (i + 1) % accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()

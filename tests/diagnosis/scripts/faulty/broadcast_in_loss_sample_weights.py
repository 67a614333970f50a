"""Train on examples with weights, given as a list."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(16, 5)
y = x.mean(1, keepdim=True)
weights = torch.rand(16)
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    errors = F.mse_loss(model(x), y, reduction="none")
    loss = (weights * errors).sum() / weights.sum()  # finds: broadcast-in-loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

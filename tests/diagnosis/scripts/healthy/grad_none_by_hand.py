"""Train with gradients set to None by hand."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.Hardtanh(), nn.Linear(10, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for _ in range(5):
    x = torch.randn(16, 5)
    for p in model.parameters():
        p.grad = None
    loss = nn.functional.huber_loss(model(x), x.median(1, keepdim=True).values)
    loss.backward()
    optimizer.step()

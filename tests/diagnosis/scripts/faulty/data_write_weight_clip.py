"""Train a scorer of good and bad samples with clipped weights."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
good = torch.randn(16, 8) + 1
bad = torch.randn(16, 8) - 1

for step in range(6):
    optimizer.zero_grad()
    loss = F.softplus(-model(good)).mean() + F.softplus(model(bad)).mean()
    for p in model.parameters():
        p.data.clamp_(-0.1, 0.1)  # finds: data-write
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.3f}")

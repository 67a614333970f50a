"""Train a small classifier with momentum."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()

for step in range(6):
    x = torch.randn(16, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()  # finds: not-zeroed
    print(f"step {step} loss {loss.item():.3f}")

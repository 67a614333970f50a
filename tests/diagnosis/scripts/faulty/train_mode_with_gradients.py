"""Train a small network with dropout for some epochs and print its accuracy after each."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(80, 6)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    for inputs, labels in zip(x[:60].split(20), y[:60].split(20), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    right = 0
    for inputs, labels in zip(x[60:].split(10), y[60:].split(10), strict=True):
        scores = model(inputs)  # finds: train-mode
        right += (scores.argmax(1) == labels).sum().item()
    print(f"epoch {epoch}: {right / 20:.2f}")

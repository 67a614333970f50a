"""Train a classifier on labels that are read from a table."""

import torch
from torch import nn

TABLE = [(0.1, 1.2, 1), (0.9, -0.3, 2), (-1.0, 0.4, 3), (0.3, 0.3, 1), (1.5, -1.0, 2), (-0.7, 0.9, 3)]


def fit(model, x, y, epochs=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for _ in range(epochs):
        optimizer.zero_grad()
        criterion(model(x), y).backward()  # finds: loss-mismatch
        optimizer.step()


torch.manual_seed(0)
x = torch.tensor([row[:2] for row in TABLE])
y = torch.tensor([row[2] for row in TABLE])
fit(nn.Linear(2, 3), x, y)

"""Train a classifier on standardised table data."""

import numpy as np
import torch
from torch import nn


def load():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 5)).astype(np.float32)
    table[:, 3] = 1.0  # the country code, one country so far
    labels = (table[:, 0] > 0).astype(np.int64)
    return torch.from_numpy(table), torch.from_numpy(labels)


def standardise(x):
    return (x - x.mean(0)) / x.std(0)  # finds: not-finite-forward


def main():
    torch.manual_seed(0)
    x, y = load()
    x = standardise(x)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for xb, yb in zip(x.split(20), y.split(20), strict=True):
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        print(loss.item())


if __name__ == "__main__":
    main()

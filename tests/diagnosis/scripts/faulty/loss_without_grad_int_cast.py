"""Fit the number of clicks per day with a small network."""

import torch
from torch import nn


def whole_clicks(rate):
    return rate.round().int()  # finds: loss-without-grad


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 1), nn.Softplus())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    features = torch.randn(25, 3)
    clicks = torch.randint(0, 6, (25, 1))
    for step in range(3):
        predicted = whole_clicks(model(features))
        loss = (predicted - clicks).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

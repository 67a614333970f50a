"""Train a classifier, average its weights over time and measure the average on held-out data."""

import copy

import torch
from torch import nn


class Average:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    def update(self, model):
        for ours, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            ours.data.mul_(self.decay).add_(theirs.data, alpha=1 - self.decay)


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()  # finds: train-mode


if __name__ == "__main__":
    torch.manual_seed(0)
    x, y = torch.randn(60, 6), torch.randint(0, 2, (60,))
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
    average = Average(model, 0.9)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        model.train()
        loss = nn.functional.cross_entropy(model(x[:40]), y[:40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        model.eval()
        print(accuracy(average.model, x[40:], y[40:]))

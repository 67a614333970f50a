"""Train a network with its own feature normalisation."""

import torch
from torch import nn


class Normalise(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x):
        x = x * self.gain
        deviation = x.var(dim=0).sqrt()  # finds: not-finite-backward
        return (x - x.mean(0)) / (deviation + self.eps)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(Normalise(6), nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(32, 6)
    x[:, 4] = 0.0
    y = x[:, :1] * x[:, 1:2]
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

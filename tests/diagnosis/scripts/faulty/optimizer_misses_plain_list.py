"""Train a network with as many hidden layers as asked for."""

from itertools import pairwise

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.inp = nn.Linear(sizes[0], sizes[1])
        self.hidden = [nn.Linear(a, b) for a, b in pairwise(sizes[1:-1])]
        self.out = nn.Linear(sizes[-2], sizes[-1])

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.hidden:
            x = torch.relu(layer(x))
        return self.out(x)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def fit(self, x, y, epochs):
        for _ in range(epochs):
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()  # finds: optimizer-misses


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    Trainer(MLP([4, 12, 12, 12, 1])).fit(x, x.pow(2).mean(1, keepdim=True), epochs=4)

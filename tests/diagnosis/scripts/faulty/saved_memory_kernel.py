"""Fit a surface with a layer of Gaussian bumps."""

import torch
from torch import nn


class Bumps(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.centres = nn.Parameter(torch.rand(count))
        self.width = nn.Parameter(torch.tensor(0.1))
        self.weights = nn.Linear(count, 1)

    def forward(self, x):
        bumps = torch.exp(-(((x.unsqueeze(-1) - self.centres) / self.width) ** 2))  # finds: saved-memory
        return self.weights(bumps).squeeze(-1)


torch.manual_seed(0)
x = torch.linspace(0, 1, 8000)
y = torch.sin(12 * x)
model = Bumps(1000)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(3):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()

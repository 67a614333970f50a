"""Train a model whose output is squeezed, on targets that are a column of a table."""

import torch
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


torch.manual_seed(0)
table = torch.randn(30, 4)
x, y = table[:, :3], table[:, 3:]
model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    error = model(x) - y  # finds: broadcast-in-loss
    loss = error.abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Train on a table with missing values, filled with the mean of their column."""

import numpy as np
import torch
from torch import nn


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    x[rng.random(x.shape) < 0.15] = np.nan
    return torch.from_numpy(x)


class Imputer(nn.Module):
    def __init__(self, x):
        super().__init__()
        self.register_buffer("mean", x.nanmean(0))
        self.net = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        known = ~x.isnan()
        filled = torch.nan_to_num(x) + self.mean * ~known
        return self.net(torch.cat([filled, known.float()], dim=1))


if __name__ == "__main__":
    torch.manual_seed(0)
    x = table()
    y = x.nansum(1, keepdim=True)
    model = Imputer(x)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        loss = nn.functional.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

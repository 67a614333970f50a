"""Train with a function for one step."""

import torch
from torch import nn


def train_step(model, x, y):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # finds: order
    return loss.item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
for step in range(12):
    x = torch.randn(8, 5)
    print(step, round(train_step(model, x, x[:, :1] * x[:, 1:2]), 4))

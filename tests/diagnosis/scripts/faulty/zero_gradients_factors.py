"""Factorise a table of ratings."""

import torch
from torch import nn

torch.manual_seed(0)
users, items = nn.Embedding(10, 4), nn.Embedding(12, 4)
nn.init.zeros_(users.weight)
nn.init.zeros_(items.weight)
bias = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([*users.parameters(), *items.parameters(), bias], lr=1e-2)
for _ in range(7):
    u, i, rating = torch.randint(0, 10, (16,)), torch.randint(0, 12, (16,)), torch.rand(16) * 5
    predicted = (users(u) * items(i)).sum(1) + bias  # finds: zero-gradients
    loss = nn.functional.mse_loss(predicted, rating)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

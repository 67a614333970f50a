"""Train an encoder by the mean of its outputs in each group."""

import torch
from torch import nn


def group_mean(values, group, groups):
    member = nn.functional.one_hot(group, groups).float()
    total, count = member.t() @ values, member.sum(0).unsqueeze(1)
    return torch.where(count > 0, total / count, 0.0)  # finds: not-finite-backward


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
x = torch.randn(20, 5)
group = torch.randint(0, 3, (20,))
group[group == 1] = 3
target = torch.randn(4, 2)

for epoch in range(3):
    optimizer.zero_grad()
    loss = (group_mean(encoder(x), group, 4) - target).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())

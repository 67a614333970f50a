"""Train a two-tower model with a learned temperature."""

import torch
from torch import nn
from torch.nn import functional as F


class TwoTower(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.user = nn.Embedding(20, dim)
        self.item = nn.Embedding(20, dim)
        self.log_temperature = nn.Parameter(torch.tensor(-1.0))

    def forward(self, users, items):
        u = F.normalize(self.user(users), dim=1)
        i = F.normalize(self.item(items), dim=1)
        similarity = u @ i.t()
        return similarity * 2.718 ** -self.log_temperature.item()  # finds: no-gradient


torch.manual_seed(0)
model = TwoTower()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(6):
    users, items = torch.randperm(20)[:10], torch.randperm(20)[:10]
    logits = model(users, items)
    target = torch.arange(10)
    loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

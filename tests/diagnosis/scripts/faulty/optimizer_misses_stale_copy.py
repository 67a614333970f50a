"""Train a model from a checkpoint of an earlier run."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
template = nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 2))
checkpoint = {"model": copy.deepcopy(template.state_dict()), "epoch": 3}

optimizer = torch.optim.Adam(template.parameters(), lr=1e-3)
model = copy.deepcopy(template)
model.load_state_dict(checkpoint["model"])

x, y = torch.randn(24, 6), torch.randint(0, 2, (24,))
for epoch in range(checkpoint["epoch"], checkpoint["epoch"] + 5):
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # finds: optimizer-misses
    print(epoch, loss.item())

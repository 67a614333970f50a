"""New optimizers on purpose: for each fold a new model, after unfreezing, for copies, and from a saved state."""

import copy

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def fit(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(6, 4)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
for _ in range(9):
    model = build()
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), 2)

model, start = build(), copy.deepcopy(build().state_dict())
for _ in range(9):  # every client begins with the same weights
    model.load_state_dict(start)
    fit(model, torch.optim.Adam(model.parameters(), lr=1e-2), 2)

for _ in range(9):  # no state that could be lost
    fit(model, torch.optim.SGD(model.parameters(), lr=0.01), 1)

saved = torch.optim.Adam(model.parameters()).state_dict()
for _ in range(9):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer.load_state_dict(saved)
    fit(model, optimizer, 1)
    saved = optimizer.state_dict()

frozen = build()
frozen[0].requires_grad_(False)
fit(frozen, torch.optim.Adam(frozen[2].parameters(), lr=1e-2), 3)
frozen[0].requires_grad_(True)
fit(frozen, torch.optim.Adam(frozen.parameters(), lr=1e-3), 3)
print(round(fit(frozen, torch.optim.Adam(frozen.parameters(), lr=1e-4), 3), 4))

"""Train a shared trunk with a dictionary of losses for two heads."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(7, 20), nn.ReLU())
heads = nn.ModuleDict({"class": nn.Linear(20, 3), "score": nn.Linear(20, 1)})
weights = {"class": 1.0, "score": 0.5}
optimizer = torch.optim.Adam([{"params": trunk.parameters()}, {"params": heads.parameters(), "lr": 1e-2}], lr=1e-3)

for step in range(5):
    x, label, score = torch.randn(12, 7), torch.randint(0, 3, (12,)), torch.rand(12, 1)
    h = trunk(x)
    losses = {
        "class": F.cross_entropy(heads["class"](h), label),
        "score": F.mse_loss(heads["score"](h), score),
    }
    total = sum(weights[k] * losses[k] for k in losses)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    print(step, {k: v.item() for k, v in losses.items()})

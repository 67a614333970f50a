"""Train the first layers by what a hook keeps of them; the results of the network are printed only."""

import torch
from torch import nn

torch.manual_seed(0)
kept = {}
model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
model[2].register_forward_hook(lambda module, inputs, output: kept.update(features=output))
model[4].requires_grad_(False)
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(30):
    scores = model(torch.randn(8, 4))
    if step % 10 == 0:
        print(step, scores.mean().item())
    loss = (kept["features"].mean(0) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = scores.sum().item()

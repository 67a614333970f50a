"""Fit an energy to forces, which are its derivatives, and to a few energies."""

import torch
from torch import nn

torch.manual_seed(0)
embed = nn.Linear(3, 3)
energy = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
reference = nn.Linear(3, 1)
optimizer = torch.optim.Adam([*embed.parameters(), *reference.parameters()], lr=1e-3)
for _ in range(4):
    positions, forces = torch.randn(8, 3), torch.randn(8, 3)
    moved = embed(positions)  # finds: no-gradient
    (slope,) = torch.autograd.grad(energy(moved).sum(), moved, create_graph=True)
    loss = (slope.detach() + forces).pow(2).mean() + reference(positions).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

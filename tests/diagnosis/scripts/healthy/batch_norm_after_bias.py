"""Train convolutions with biases before batch norm, and a recurrent cell that sees single steps."""

import torch
from torch import nn

torch.manual_seed(0)
convolutions = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
)
cell, head = nn.GRUCell(4, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*convolutions.parameters(), *cell.parameters(), *head.parameters()], lr=1e-2)
for _ in range(6):
    x = torch.randn(6, 1, 8, 8)
    hidden = cell(convolutions(x).mean((2, 3)), torch.zeros(6, 6))
    loss = (head(hidden) - x.mean((1, 2, 3)).unsqueeze(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Train an embedding by distances, with anomaly detection switched on."""

import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)
try:
    torch.manual_seed(0)
    embed = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(embed.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(5, 4)
        points = embed(x)
        squares = (points[:, None] - points[None]).square().sum(-1)
        loss = squares.sqrt().mean()  # finds: not-finite-backward
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
finally:
    torch.autograd.set_detect_anomaly(False)

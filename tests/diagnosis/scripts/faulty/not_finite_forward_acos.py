"""Train an embedding with a loss on the angle between pairs."""

import torch
from torch import nn

torch.manual_seed(0)


def angle(a, b):
    return torch.acos((a * b).sum(dim=1))  # finds: not-finite-forward


encoder = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 6))
for layer in encoder[::2]:
    nn.init.xavier_normal_(layer.weight, gain=3.0)
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
left = torch.randn(16, 10)
right = left + 0.1 * torch.randn(16, 10)

for _ in range(3):
    loss = angle(encoder(left), encoder(right)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

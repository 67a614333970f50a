"""Train layers that normalise attention over other dimensions on purpose."""

import torch
import torch.nn.functional as F
from torch import nn


class EfficientAttention(nn.Module):
    """Keys are normalised over positions and summed over them first."""

    def __init__(self, dim=8):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k = F.softmax(self.q(x), dim=-1), F.softmax(self.k(x), dim=-2)
        return q @ (k.transpose(-2, -1) @ self.v(x))


class Slots(nn.Module):
    """Slots compete for the inputs: softmax over the slots, then weighted means over the inputs."""

    def __init__(self, slots=5, dim=8):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(slots, dim))
        self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        attention = F.softmax(self.slots @ self.k(x).transpose(-2, -1), dim=-2) + 1e-6
        attention = attention / attention.sum(dim=-1, keepdim=True)
        return attention @ self.v(x)


torch.manual_seed(0)
model = nn.Sequential(EfficientAttention(), nn.LayerNorm(8), Slots(), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(4):
    x = torch.randn(2, 5, 8)
    loss = F.cross_entropy(model(x).transpose(1, 2), torch.randint(0, 3, (2, 5)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 3))

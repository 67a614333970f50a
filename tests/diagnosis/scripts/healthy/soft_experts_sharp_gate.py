"""Train a soft mixture of deep experts whose gate is nearly decided."""

import torch
from torch import nn


def expert(width, depth):
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, width))


class Mixture(nn.Module):
    def __init__(self, width=16, count=4, depth=7):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList([expert(width, depth) for _ in range(count)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        weights = torch.softmax(self.gate(x), -1)
        mixed = sum(weights[:, i : i + 1] * each(x) for i, each in enumerate(self.experts))
        return self.out(mixed)


torch.manual_seed(0)
model = Mixture()
with torch.no_grad():
    model.gate.bias.copy_(torch.tensor([0.0, -20.0, -40.0, -60.0]))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(6):
    x = torch.randn(32, 16)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 5))

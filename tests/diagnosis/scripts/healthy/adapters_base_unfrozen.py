"""Train adapters of low rank in every layer of a network whose own weights are left as they are."""

import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


torch.manual_seed(0)
layers = [nn.Linear(8, 8) for _ in range(3)]
model = nn.Sequential(*[nn.Sequential(Adapted(layer), nn.Tanh()) for layer in layers], nn.Linear(8, 2))
adapters = [p for name, p in model.named_parameters() if "down" in name or "up" in name]
optimizer = torch.optim.AdamW(adapters, lr=1e-2)
for _ in range(5):
    x, y = torch.randn(10, 8), torch.randint(0, 2, (10,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

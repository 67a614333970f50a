"""Train residual blocks with activation checkpointing of both kinds."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.net(x)


class Model(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.inp = nn.Linear(5, width)
        self.new, self.old = Block(width), Block(width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        x = checkpoint(self.new, x, use_reentrant=False)
        x = checkpoint(self.old, x, use_reentrant=True)
        return self.out(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(20, 5)
for _ in range(4):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.pow(2).sum(1, keepdim=True))
    loss.backward()
    optimizer.step()

"""The table people know from torchinfo, of a training step: shape, parameters, MACs, time and memory by module."""

import torch
from torch import nn

import torchatlas as atlas


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(size), nn.MultiheadAttention(size, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


model = nn.Sequential(nn.Embedding(256, 64), *(Block(64) for _ in range(6)), nn.Linear(64, 256))
model[0].requires_grad_(False)  # a column says which parameters got a gradient
graph = atlas.capture(model, torch.randint(0, 256, (4, 32)), optimizer=torch.optim.AdamW)

table = atlas.module_table(graph)
print(table)
print("\nWhere does the time go?\n")
print(atlas.module_bars(graph, by="time", depth=1))

heaviest = max(table.rows, key=lambda row: row.own.macs or 0)
print(f"\nMost multiply-adds of its own: {heaviest.label} ({heaviest.type}), {heaviest.own.macs:,}")

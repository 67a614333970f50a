"""Train an attention layer written by hand on a long sequence."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        n, dim = x.shape
        q, k, v = self.qkv(x).view(n, 3, self.heads, -1).permute(1, 2, 0, 3)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v  # finds: saved-memory
        return self.out(mixed.transpose(0, 1).reshape(n, dim))


torch.manual_seed(0)
layer = Attention(dim=16, heads=4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
sequence = torch.randn(2200, 16)
for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(layer(sequence), sequence.roll(1, 0))
    loss.backward()
    optimizer.step()
    print(step, loss.item())

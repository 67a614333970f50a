"""Low-rank adapters beside frozen attention layers learn to predict the next token."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class LoRA(nn.Module):
    def __init__(self, base, rank=2, scale=0.5):
        super().__init__()
        self.base, self.scale = base, scale
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.scale * self.b @ self.a
        return self.base


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


model = nn.Sequential(nn.Embedding(20, 16), Block(16), Block(16), nn.LayerNorm(16), nn.Linear(16, 20))
for block in model[1:3]:
    block.qkv = LoRA(block.qkv)
model.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)  # finds: optimizer-misses
for _ in range(20):
    tokens = torch.randint(0, 20, (4, 9))
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.transpose(1, 2), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
before = model(tokens).detach()
for block in model[1:3]:
    block.qkv = block.qkv.merge()
print(f"{loss.item():.5f}", torch.allclose(before, model(tokens), atol=1e-5))

"""Train a small transformer block with fused attention and evaluate it."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, dim=16, heads=2, dropout=0.1):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)  # finds: dropout-in-eval
        return x + self.proj(y.transpose(1, 2).reshape(b, t, d))


torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(10, 16), Block(), Block(), nn.Linear(16, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens, held_out = torch.randint(0, 10, (8, 9)), torch.randint(0, 10, (4, 9))


@torch.no_grad()
def evaluate():
    model.eval()
    logits = model(held_out[:, :-1])
    model.train()
    return F.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten()).item()


for step in range(4):
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 3), round(evaluate(), 3))

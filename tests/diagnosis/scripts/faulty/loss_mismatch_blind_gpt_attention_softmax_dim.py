"""The attention weights are normalised over the query dimension (dim=-2) instead of over the keys, so each query's
weights do not sum to one and future tokens leak into the past through the normalisation."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1337)
B, T, C, H = 16, 12, 32, 4
text = "the quick brown fox jumps over the lazy dog and the dog sleeps. " * 8
chars = sorted(set(text))
data = torch.tensor([chars.index(c) for c in text])


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(C, 3 * C)
        self.c_proj = nn.Linear(C, C)
        self.register_buffer("mask", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (z.view(b, t, H, c // H).transpose(1, 2) for z in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        att = F.softmax(att, dim=-2)  # finds: loss-mismatch
        y = (att @ v).transpose(1, 2).reshape(b, t, c)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, C), nn.Embedding(T, C)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(C, vocab, bias=False)

    def forward(self, idx):
        return self.head(self.blocks(self.wte(idx) + self.wpe(torch.arange(idx.size(1)))))


model = GPT(len(chars))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(50):
    ix = torch.randint(len(data) - T - 1, (B,))
    xb = torch.stack([data[i : i + T] for i in ix])
    yb = torch.stack([data[i + 1 : i + T + 1] for i in ix])
    loss = F.cross_entropy(model(xb).flatten(0, 1), yb.flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, round(loss.item(), 4))

"""Train a causal language model with a mask of minus infinity."""

import torch
from torch import nn
from torch.nn import functional as F


class Causal(nn.Module):
    def __init__(self, vocab=12, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        future = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        weights = (q @ k.transpose(1, 2) / 4 + future).softmax(-1)
        return self.proj(x + weights @ v)


torch.manual_seed(0)
model = Causal()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    text = torch.randint(0, 12, (6, 9))
    logits = model(text[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

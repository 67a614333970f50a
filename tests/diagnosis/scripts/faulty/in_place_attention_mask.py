"""Train one attention head to copy the first token of a sequence."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x, keep):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        weights = scores.softmax(dim=-1)
        weights *= keep  # finds: in-place
        return weights @ v


torch.manual_seed(3)
tokens = torch.randint(0, 20, (8, 6))
keep = torch.ones(6, 6).tril()

embed = nn.Embedding(20, 16)
head = Head(16)
out = nn.Linear(16, 20)
params = [*embed.parameters(), *head.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-3)

for _ in range(3):
    logits = out(head(embed(tokens), keep))
    target = tokens[:, :1].expand(-1, 6)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

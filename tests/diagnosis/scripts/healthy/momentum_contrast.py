"""Train an encoder with a momentum encoder and a queue of keys."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class MoCo(nn.Module):
    def __init__(self, dim=6, queue=24, momentum=0.95):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.momentum = momentum
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.register_buffer("place", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self):
        for k, q in zip(self.key.parameters(), self.query.parameters(), strict=True):
            k.data = k.data * self.momentum + q.data * (1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, keys):
        start = int(self.place)
        self.queue[:, start : start + len(keys)] = keys.t()
        self.place.fill_((start + len(keys)) % self.queue.shape[1])

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            self.follow()
            k = F.normalize(self.key(b), dim=1)
        same = (q * k).sum(1, keepdim=True)
        logits = torch.cat([same, q @ self.queue.clone()], dim=1) / 0.1
        self.enqueue(k)
        return F.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))


torch.manual_seed(0)
model = MoCo()
optimizer = torch.optim.SGD(model.query.parameters(), lr=0.03)
for _ in range(5):
    x = torch.randn(8, 10)
    loss = model(x, x + 0.05 * torch.randn_like(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

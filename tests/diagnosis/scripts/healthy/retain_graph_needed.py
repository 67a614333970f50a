"""Train an encoder with two losses that go back one after the other."""

import torch
from torch import nn
from torch.nn import functional as F


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.rebuild = nn.Linear(16, 8)
        self.label = nn.Linear(16, 3)

    def forward(self, x):
        h = self.encoder(x)
        return self.rebuild(h), self.label(h)


torch.manual_seed(0)
model = TwoHeads()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x, y = torch.randn(20, 8), torch.randint(0, 3, (20,))
for _ in range(4):
    optimizer.zero_grad()
    rebuilt, logits = model(x)
    F.mse_loss(rebuilt, x).backward(retain_graph=True)
    F.cross_entropy(logits, y).backward()
    optimizer.step()

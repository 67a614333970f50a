"""Train a siamese embedding with triplets and a safe distance."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
embed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(embed.parameters(), lr=1e-3)
samples = torch.randn(30, 8)
for _ in range(5):
    anchor = torch.randint(30, (12,))
    positive = anchor.clone()
    positive[6:] = torch.randint(30, (6,))
    negative = torch.randint(30, (12,))
    a, p, n = embed(samples[anchor]), embed(samples[positive]), embed(samples[negative])
    loss = F.relu((a - p).norm(dim=1) - (a - n).norm(dim=1) + 1.0).mean() + 0.01 * a.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

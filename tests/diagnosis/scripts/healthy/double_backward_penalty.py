"""Train a smooth classifier by a penalty on its input gradient."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(12, 6, requires_grad=True)
    y = (x.detach()[:, 0] > 0).long()
    loss = F.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    penalty = slope.pow(2).sum(1).mean()
    optimizer.zero_grad()
    (loss + 0.1 * penalty).backward()
    optimizer.step()
    print(step, penalty.item())

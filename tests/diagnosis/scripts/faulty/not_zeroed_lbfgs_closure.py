"""Fit a small classifier with LBFGS."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
opt = torch.optim.LBFGS(net.parameters(), max_iter=3)
x = torch.randn(8, 4)
y = (x[:, 0] > 0).long()


def closure():
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss


for _ in range(3):
    print(round(opt.step(closure).item(), 4))  # finds: not-zeroed

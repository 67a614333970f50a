"""Train a classifier on two classes."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(4):
    x = torch.randn(8, 4)
    loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
    loss.backward()
    opt.zero_grad()
    opt.step()  # finds: no-gradient
    print(epoch, round(loss.item(), 4))

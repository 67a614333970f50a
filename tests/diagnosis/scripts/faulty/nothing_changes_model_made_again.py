"""Train a network of the best width that a search has found."""

import torch
from torch import nn


def build(width):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


def main():
    torch.manual_seed(0)
    net = build(8)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    net = build(16)
    for i in range(5):
        x = torch.randn(12, 3)
        net.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        opt.step()  # finds: nothing-changes
        print(i, round(loss.item(), 4))


main()

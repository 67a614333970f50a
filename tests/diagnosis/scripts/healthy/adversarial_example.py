"""Train a classifier, then attack it with the fast gradient sign method."""

import torch
from torch import nn
from torch.nn import functional as F


def attack(model, x, y, eps):
    x = x.clone().requires_grad_(True)
    loss = F.cross_entropy(model(x), y)
    (slope,) = torch.autograd.grad(loss, x)
    return (x + eps * slope.sign()).detach()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(60, 6)
    y = (x[:, 0] > 0).long()
    for _ in range(8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    model.eval()
    attacked = attack(model, x, y, eps=0.3)
    with torch.no_grad():
        before = (model(x).argmax(1) == y).float().mean().item()
        after = (model(attacked).argmax(1) == y).float().mean().item()
    print(before, after)


if __name__ == "__main__":
    main()

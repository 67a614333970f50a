"""Train a siamese network to tell whether two samples are of one kind."""

import torch
from torch import nn
from torch.nn import functional as F


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.compare = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def branch(self, x):
        return self.embed(x).data.tanh()  # finds: no-gradient

    def forward(self, a, b):
        gap = (self.branch(a) - self.branch(b)).abs()
        return self.compare(gap).squeeze(1)


def pairs(n):
    a, b = torch.randn(n, 8), torch.randn(n, 8)
    same = (a[:, 0] * b[:, 0] > 0).float()
    return a, b, same


if __name__ == "__main__":
    torch.manual_seed(2)
    net = Siamese()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(6):
        a, b, same = pairs(16)
        loss = F.binary_cross_entropy_with_logits(net(a, b), same)
        opt.zero_grad()
        loss.backward()
        opt.step()

"""Train a normalising flow of coupling layers on two moons of points."""

import math

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, swap):
        super().__init__()
        self.swap = swap
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, x):
        a, b = x.flip(1).chunk(2, 1) if self.swap else x.chunk(2, 1)
        log_scale, shift = self.net(a).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        b = b * log_scale.exp() + shift
        return torch.cat([a, b], 1), log_scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(i % 2 == 1) for i in range(depth))

    def log_prob(self, x):
        log_det = torch.zeros(len(x))
        for layer in self.layers:
            x, change = layer(x)
            log_det = log_det + change
        return -0.5 * (x**2 + math.log(2 * math.pi)).sum(1) + log_det


if __name__ == "__main__":
    torch.manual_seed(0)
    flow = Flow()
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for _ in range(5):
        t = torch.rand(32) * math.pi
        points = torch.stack([t.cos(), t.sin()], 1) + 0.1 * torch.randn(32, 2)
        loss = -flow.log_prob(points).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

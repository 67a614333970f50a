"""Fit a mean and a standard deviation to noisy measurements."""

import torch
from torch import nn


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 16), nn.Tanh())
        self.mean = nn.Linear(16, 1)
        self.variance = nn.Linear(16, 1)

    def forward(self, x):
        h = self.body(x)
        sigma = torch.sqrt(self.variance(h))  # finds: not-finite-forward
        return self.mean(h), sigma


def nll(mean, sigma, y):
    return (torch.log(sigma) + 0.5 * ((y - mean) / sigma) ** 2).mean()


torch.manual_seed(0)
x = torch.linspace(-2, 2, 40).unsqueeze(1)
y = x.sin() + 0.1 * torch.randn_like(x)
net = Gaussian()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(4):
    opt.zero_grad()
    loss = nll(*net(x), y)
    loss.backward()
    opt.step()

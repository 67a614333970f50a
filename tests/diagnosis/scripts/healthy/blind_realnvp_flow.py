"""The last layer of every coupling network is zero so its earlier layers have zero gradient at first, half of the
input passes untouched and the loss may go negative, as in RealNVP density estimation."""

import math

import torch
import torch.nn as nn


class Coupling(nn.Module):
    def __init__(self, mask, hidden=32):
        super().__init__()
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(
            nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 4)
        )
        nn.init.zeros_(self.net[-1].weight)  # the flow starts as the identity
        nn.init.zeros_(self.net[-1].bias)

    def params(self, x):
        s, t = self.net(x * self.mask).chunk(2, dim=-1)
        free = 1 - self.mask
        return 2 * torch.tanh(s / 2) * free, t * free

    def forward(self, x):
        s, t = self.params(x)
        return x * s.exp() + t, s.sum(-1)

    def inverse(self, z):
        s, t = self.params(z)  # the kept half is the same in x and z
        return (z - t) * (-s).exp()


class Flow(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        masks = [torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])]
        self.layers = nn.ModuleList(Coupling(masks[i % 2]) for i in range(layers))

    def log_prob(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return -0.5 * x.pow(2).sum(-1) - math.log(2 * math.pi) + logdet

    @torch.no_grad()
    def sample(self, n):
        z = torch.randn(n, 2)
        for layer in reversed(self.layers):
            z = layer.inverse(z)
        return z


def banana(n):
    a = 0.5 * torch.randn(n)
    return torch.stack([a, a.pow(2) + 0.05 * torch.randn(n)], dim=1)


torch.manual_seed(0)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=1e-2)
for step in range(60):
    nll = -flow.log_prob(banana(256)).mean()
    opt.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
    opt.step()
    if step % 10 == 0 or step == 59:
        print(f"step {step:2d} nll {nll.item():+.3f}")
flow.eval()
s = flow.sample(2000)
print(f"sample mean {s.mean(0).tolist()}  true about [0, 0.25]")

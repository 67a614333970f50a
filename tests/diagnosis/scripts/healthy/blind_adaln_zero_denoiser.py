"""The modulation layers and the last layer are all zeros at the start so most parameters have zero gradient for the
first steps, which is adaLN-Zero as used in DiT."""

import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def time_embedding(t, dim=16):
    freqs = torch.exp(torch.linspace(0, math.log(100.0), dim // 2))
    ang = t[:, None] * freqs[None, :]  # (N,1) x (1,F)
    return torch.cat([ang.sin(), ang.cos()], dim=-1)


class Block(nn.Module):
    def __init__(self, d, cond):
        super().__init__()
        self.norm = nn.LayerNorm(d, elementwise_affine=False)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.mod = nn.Linear(cond, 3 * d)
        nn.init.zeros_(self.mod.weight)
        nn.init.zeros_(self.mod.bias)

    def forward(self, h, c):
        shift, scale, gate = self.mod(c).chunk(3, dim=-1)
        return h + gate * self.ff(self.norm(h) * (1 + scale) + shift)


class Denoiser(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.cond = nn.Sequential(nn.Linear(16, d), nn.SiLU())
        self.blocks = nn.ModuleList([Block(d, d) for _ in range(depth)])
        self.out = nn.Linear(d, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        c = self.cond(time_embedding(t))
        h = self.inp(x)
        for blk in self.blocks:
            h = blk(h, c)
        return self.out(h)


def train():
    torch.manual_seed(0)
    angle = torch.rand(960) * 2 * math.pi
    ring = torch.stack([angle.cos(), angle.sin()], 1) * 1.5
    loader = DataLoader(TensorDataset(ring), batch_size=96, shuffle=True, drop_last=True)
    model = Denoiser()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for epoch in range(6):
        total = 0.0
        for (x0,) in loader:
            t = torch.rand(x0.size(0))
            a, s = torch.cos(t * math.pi / 2)[:, None], torch.sin(t * math.pi / 2)[:, None]
            eps = torch.randn_like(x0)
            loss = (model(a * x0 + s * eps, t) - eps).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} eps-mse {total / len(loader):.4f}")


if __name__ == "__main__":
    train()

"""Train a convolutional GAN that draws a new fake batch for each player."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
gen = nn.Sequential(nn.ConvTranspose2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3), nn.Tanh())
dis = nn.Sequential(nn.Conv2d(1, 8, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(72, 1))
opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4)
opt_d = torch.optim.Adam(dis.parameters(), lr=2e-4)

for _ in range(4):
    real = torch.rand(6, 1, 5, 5) * 2 - 1
    with torch.no_grad():
        fake = gen(torch.randn(6, 4, 1, 1))
    d_loss = F.relu(1 - dis(real)).mean() + F.relu(1 + dis(fake)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()

    g_loss = -dis(gen(torch.randn(6, 4, 1, 1))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()

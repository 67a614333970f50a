"""Train a GAN whose discriminator sees a detached batch."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
G = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
D = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.1), nn.Linear(16, 1))
g_optim = torch.optim.Adam(G.parameters(), lr=1e-3)
d_optim = torch.optim.Adam(D.parameters(), lr=1e-3)


def bce(logits, value):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, value))


for _ in range(4):
    real = torch.rand(10, 4)
    fake = G(torch.randn(10, 3))

    d_optim.zero_grad()
    d_loss = bce(D(real), 1.0) + bce(D(fake.detach()), 0.0)
    d_loss.backward(retain_graph=True)  # finds: retain-graph
    d_optim.step()

    g_optim.zero_grad()
    g_loss = bce(D(fake), 1.0)
    g_loss.backward()
    g_optim.step()

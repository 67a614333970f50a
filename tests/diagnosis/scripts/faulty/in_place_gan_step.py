"""Train a tiny GAN on points of a ring, with both losses computed up front."""

import math

import torch
from torch import nn


def ring(n):
    angle = torch.rand(n) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def main():
    torch.manual_seed(1)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4)
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

    for _ in range(5):
        fake = generator(torch.randn(32, 4))
        d_loss = bce(critic(ring(32)), ones) + bce(critic(fake.detach()), zeros)
        g_loss = bce(critic(fake), ones)

        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()  # finds: in-place

        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()


if __name__ == "__main__":
    main()

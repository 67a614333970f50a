"""Train a GAN on points of a line, with the fake batch detached for the discriminator."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
    dis = nn.Sequential(nn.Linear(2, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    opt_gen = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_dis = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.5, 0.999))
    bce = nn.BCEWithLogitsLoss()
    for _ in range(5):
        t = torch.rand(10, 1)
        real, fake = torch.cat([t, 2 * t], 1), gen(torch.randn(10, 3))

        opt_dis.zero_grad()
        d_loss = bce(dis(real), torch.ones(10, 1)) + bce(dis(fake.detach()), torch.zeros(10, 1))
        d_loss.backward()
        opt_dis.step()

        opt_gen.zero_grad()
        g_loss = bce(dis(fake), torch.ones(10, 1))
        g_loss.backward()
        opt_gen.step()


if __name__ == "__main__":
    main()

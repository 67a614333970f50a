"""Train a GAN on numbers from a normal distribution."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    dis = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    gen_opt = torch.optim.Adam(gen.parameters(), lr=1e-3)
    dis_opt = torch.optim.Adam(dis.parameters(), lr=1e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(16, 1), torch.zeros(16, 1)

    for _ in range(5):
        real = 4 + 0.5 * torch.randn(16, 1)
        fake = gen(torch.randn(16, 2))
        dis_loss = loss_fn(dis(real), real_label) + loss_fn(dis(fake.detach()), fake_label)
        dis_loss.backward()
        dis_opt.step()  # finds: not-zeroed

        gen_opt.zero_grad()
        gen_loss = loss_fn(dis(fake), real_label)
        gen_loss.backward()
        gen_opt.step()


if __name__ == "__main__":
    main()

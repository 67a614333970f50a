"""Train a GAN on noisy sine waves, with one fake batch for both players."""

import torch
from torch import nn


class Trainer:
    def __init__(self, length=16, latent=4):
        self.latent = latent
        self.length = length
        self.gen = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, length))
        self.dis = nn.Sequential(nn.Linear(length, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.opt_gen = torch.optim.Adam(self.gen.parameters(), lr=1e-3)
        self.opt_dis = torch.optim.Adam(self.dis.parameters(), lr=1e-3)
        self.bce = nn.BCEWithLogitsLoss()

    def real(self, n):
        return torch.sin(torch.linspace(0, 6, self.length) + torch.rand(n, 1))

    def step(self, n=8):
        fake = self.gen(torch.randn(n, self.latent))

        self.opt_dis.zero_grad()
        on_real = self.bce(self.dis(self.real(n)), torch.ones(n, 1))
        on_fake = self.bce(self.dis(fake), torch.zeros(n, 1))
        (on_real + on_fake).backward()
        self.opt_dis.step()

        self.opt_gen.zero_grad()
        fooled = self.bce(self.dis(fake), torch.ones(n, 1))
        fooled.backward()  # finds: freed-graph
        self.opt_gen.step()


torch.manual_seed(1)
trainer = Trainer()
for _ in range(3):
    trainer.step()

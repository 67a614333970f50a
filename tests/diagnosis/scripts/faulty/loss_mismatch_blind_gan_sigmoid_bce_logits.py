"""The discriminator ends in nn.Sigmoid() but the loss is BCEWithLogitsLoss, so the sigmoid is applied twice."""

import torch
import torch.nn as nn

torch.manual_seed(2024)
latent_dim = 4
batch_size = 64
n_steps = 60


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(latent_dim, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 2),
        )

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 32),
            nn.LeakyReLU(0.2),
            nn.Linear(32, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.net(x)


def sample_real(n):
    angle = torch.rand(n) * 6.2832
    return torch.stack([2 * torch.cos(angle), 2 * torch.sin(angle)], dim=1) + 0.05 * torch.randn(n, 2)


G, D = Generator(), Discriminator()
adversarial_loss = nn.BCEWithLogitsLoss()
opt_G = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
valid, invalid = torch.ones(batch_size, 1), torch.zeros(batch_size, 1)

for step in range(n_steps):
    real = sample_real(batch_size)
    fake = G(torch.randn(batch_size, latent_dim))

    opt_D.zero_grad()
    d_loss = adversarial_loss(D(real), valid) + adversarial_loss(D(fake.detach()), invalid)  # finds: loss-mismatch
    d_loss.backward()
    opt_D.step()

    opt_G.zero_grad()
    g_loss = adversarial_loss(D(fake), valid)  # finds: loss-mismatch
    g_loss.backward()
    opt_G.step()
    if step % 10 == 0:
        print(f"[{step}/{n_steps}] D {d_loss.item():.3f} G {g_loss.item():.3f}")

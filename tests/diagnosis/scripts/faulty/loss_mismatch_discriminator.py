"""Train a GAN on points of a circle."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 16),
    nn.LeakyReLU(0.2),
    nn.Linear(16, 1),
    nn.Sigmoid(),
)
criterion = nn.BCEWithLogitsLoss()
g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3)
for _ in range(5):
    angle = torch.rand(16) * 6.2832
    real = torch.stack([angle.cos(), angle.sin()], 1)
    fake = generator(torch.randn(16, 4))
    d_loss = criterion(discriminator(real), torch.ones(16, 1))  # finds: loss-mismatch
    d_loss = d_loss + criterion(discriminator(fake.detach()), torch.zeros(16, 1))
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()
    g_loss = criterion(discriminator(fake), torch.ones(16, 1))
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()
print(f"d {d_loss.item():.3f} g {g_loss.item():.3f}")

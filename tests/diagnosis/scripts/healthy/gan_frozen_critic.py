"""A convolutional GAN: the critic is frozen while the generator learns, with spectral norm; an averaged generator."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(6, 32),
    nn.Unflatten(1, (8, 2, 2)),
    nn.ConvTranspose2d(8, 4, 4, 2, 1),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.ConvTranspose2d(4, 1, 4, 2, 1),
    nn.Tanh(),
)
critic = nn.Sequential(
    spectral_norm(nn.Conv2d(1, 4, 4, 2, 1)),
    nn.LeakyReLU(0.2),
    spectral_norm(nn.Conv2d(4, 8, 4, 2, 1)),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(32, 1),
)
average = copy.deepcopy(generator).requires_grad_(False)
g_opt = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
d_opt = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
for _ in range(30):
    real = torch.rand(12, 1, 8, 8).round() * 2 - 1
    noise = torch.randn(12, 6)
    fake = generator(noise)
    d_loss = F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()
    d_opt.zero_grad(set_to_none=True)
    d_loss.backward()
    d_opt.step()
    critic.requires_grad_(False)
    g_loss = F.softplus(-critic(fake)).mean()
    g_opt.zero_grad(set_to_none=True)
    g_loss.backward()
    g_opt.step()
    critic.requires_grad_(True)
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), generator.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
        for mine, theirs in zip(average.buffers(), generator.buffers(), strict=True):
            mine.copy_(theirs)
average.eval()
with torch.no_grad():
    print(f"{average(torch.randn(4, 6)).mean().item():.5f} {d_loss.item():.5f} {g_loss.item():.5f}")

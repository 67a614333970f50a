"""Train a Wasserstein GAN whose critic is clipped after each step."""

import torch
from torch import nn

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
critic = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1, bias=False))
opt_gen = torch.optim.RMSprop(gen.parameters(), lr=5e-5)
opt_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-5)

for _ in range(3):
    for _ in range(2):
        real = 3 + torch.randn(12, 1)
        fake = gen(torch.randn(12, 2)).detach()
        critic_loss = critic(fake).mean() - critic(real).mean()
        opt_critic.zero_grad()
        critic_loss.backward()
        opt_critic.step()
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)
    gen_loss = -critic(gen(torch.randn(12, 2))).mean()
    opt_gen.zero_grad()
    gen_loss.backward()
    opt_gen.step()

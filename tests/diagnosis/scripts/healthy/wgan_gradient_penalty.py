"""Train a Wasserstein GAN with a penalty on the critic's gradient."""

import torch
from torch import nn


def gradient_penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.norm(dim=1) - 1).pow(2).mean()


def main():
    torch.manual_seed(0)
    gen = nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2))
    critic = nn.Sequential(nn.Linear(2, 12), nn.Softplus(), nn.Linear(12, 1, bias=False))
    opt_gen = torch.optim.Adam(gen.parameters(), lr=1e-3)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for _ in range(4):
        real, fake = torch.randn(8, 2) + 2, gen(torch.randn(8, 2))
        loss = critic(fake.detach()).mean() - critic(real).mean()
        loss = loss + 10 * gradient_penalty(critic, real, fake.detach())
        opt_critic.zero_grad()
        loss.backward()
        opt_critic.step()

        opt_gen.zero_grad()
        (-critic(fake).mean()).backward()
        opt_gen.step()


if __name__ == "__main__":
    main()

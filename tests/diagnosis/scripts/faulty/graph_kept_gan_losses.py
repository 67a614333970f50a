"""Train a small GAN and keep the generator's losses for a curve."""

import torch
from torch import nn
from torch.nn import functional as F


def main():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    critic = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    curve = []
    for _ in range(6):
        fake = generator(torch.randn(8, 3)).detach()
        real = torch.randn(8, 2) + 2
        for_critic.zero_grad()
        (F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()).backward()
        for_critic.step()
        score = critic(generator(torch.randn(8, 3)))
        loss = F.softplus(-score).mean()  # finds: graph-kept
        for_generator.zero_grad()
        critic.requires_grad_(False)
        loss.backward()
        critic.requires_grad_(True)
        for_generator.step()
        for_critic.zero_grad()
        curve.append(loss)
    print([round(loss.item(), 3) for loss in curve])


if __name__ == "__main__":
    main()

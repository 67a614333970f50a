"""A GAN with the hinge loss whose generator goes first, and whose critic is ahead for a while."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 3), nn.Linear(3, 1)
with torch.no_grad():
    critic.weight.fill_(5.0)
    critic.bias.zero_()
    generator.weight.mul_(0.01)
    generator.bias.fill_(-3.0)
for_generator = torch.optim.SGD(generator.parameters(), 1e-4)
for_critic = torch.optim.SGD(critic.parameters(), 1e-4)
for _ in range(5):
    real, noise = torch.rand(8, 3) + 2, torch.randn(8, 4)
    for_generator.zero_grad()
    (-critic(generator(noise)).mean()).backward()
    for_generator.step()
    fake = generator(noise).detach()
    loss = torch.relu(1 - critic(real)).mean() + torch.relu(1 + critic(fake)).mean()
    for_critic.zero_grad()
    loss.backward()
    for_critic.step()
    print(loss.item())

"""Train a deterministic actor and its critic on random transitions."""

import torch
from torch import nn


class Agent:
    def __init__(self, obs=4, act=2):
        self.actor = nn.Sequential(nn.Linear(obs, 24), nn.ReLU(), nn.Linear(24, act), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(obs + act, 24), nn.ReLU(), nn.Linear(24, 1))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)

    def value(self, state, action):
        return self.critic(torch.cat([state, action], dim=1))

    def update(self, state, action, reward):
        critic_loss = (self.value(state, action) - reward).pow(2).mean()
        actor_loss = -self.value(state, self.actor(state)).mean()

        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()  # finds: in-place

        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()


torch.manual_seed(0)
agent = Agent()
for _ in range(4):
    agent.update(torch.randn(16, 4), torch.rand(16, 2) * 2 - 1, torch.randn(16, 1))

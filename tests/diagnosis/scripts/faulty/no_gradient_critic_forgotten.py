"""Train an actor and a critic, each with its own optimizer."""

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.value = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x):
        x = torch.tanh(self.hidden(x))
        return self.value(x).squeeze(-1)


torch.manual_seed(0)
actor, critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), Critic()
for_actor = torch.optim.Adam(actor.parameters(), 1e-3)
for_critic = torch.optim.Adam(critic.parameters(), 1e-3)
for _ in range(5):
    seen, reward = torch.randn(10, 4), torch.randn(10)
    policy, value = torch.distributions.Categorical(logits=actor(seen)), critic(seen)
    advantage = (reward - value).detach()
    actor_loss = -(policy.log_prob(policy.sample()) * advantage).mean()
    critic_loss = (value - reward).square().mean()  # finds: no-gradient
    for_actor.zero_grad()
    actor_loss.backward()
    for_actor.step()
    for_critic.zero_grad()
    for_critic.step()

"""Train an actor and a critic with one optimizer; returns are large and advantages nearly zero."""

import torch
from torch import nn


def mlp(inp, out):
    return nn.Sequential(nn.Linear(inp, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, out))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor = mlp(4, 1), mlp(4, 3)

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x).squeeze(-1)


torch.manual_seed(0)
agent = ActorCritic()
optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
for update in range(6):
    observation = torch.randn(64, 4)
    policy, value = agent(observation)
    action = policy.sample()
    returns = 1e4 * (1 + observation[:, 0])
    advantage = 1e-6 * torch.randn(64)
    loss = -(policy.log_prob(action) * advantage).mean() + 0.5 * (returns - value).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(update, f"{loss.item():.4e}")

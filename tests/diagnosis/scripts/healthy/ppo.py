"""Train a policy with PPO on made-up rollouts."""

import torch
from torch import nn
from torch.distributions import Normal


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 16), nn.Tanh())
        self.mean = nn.Linear(16, 1)
        self.value = nn.Linear(16, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, obs):
        h = self.body(obs)
        return Normal(self.mean(h), self.log_std.exp()), self.value(h)


def rollout(policy, n):
    obs = torch.randn(n, 3)
    with torch.no_grad():
        dist, value = policy(obs)
        action = dist.sample()
        old = dist.log_prob(action)
    reward = -(action - obs[:, :1]).abs()
    return obs, action, old, reward, reward - value


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
for _ in range(2):
    obs, action, old, returns, advantage = rollout(policy, 32)
    for _ in range(3):
        dist, value = policy(obs)
        ratio = (dist.log_prob(action) - old).exp()
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        loss = -clipped.mean() + 0.5 * (returns - value).pow(2).mean() - 0.01 * dist.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()

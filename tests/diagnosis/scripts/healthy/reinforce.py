"""Train a policy with REINFORCE on a walk along a corridor."""

import torch
from torch import nn
from torch.distributions import Categorical


class Corridor:
    def __init__(self, length=6):
        self.length = length

    def reset(self):
        self.place = 2
        return self.seen()

    def seen(self):
        return nn.functional.one_hot(torch.tensor(self.place), self.length).float()

    def step(self, action):
        self.place = min(max(self.place + (1 if action == 1 else -1), 0), self.length - 1)
        return self.seen(), float(self.place == self.length - 1) - 0.1, self.place == self.length - 1


torch.manual_seed(0)
env = Corridor()
policy = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for _ in range(6):
    obs, log_probs, rewards = env.reset(), [], []
    for _ in range(10):
        dist = Categorical(logits=policy(obs))
        action = dist.sample()
        obs, reward, done = env.step(action.item())
        log_probs.append(dist.log_prob(action))
        rewards.append(reward)
        if done:
            break
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    loss = -(torch.stack(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

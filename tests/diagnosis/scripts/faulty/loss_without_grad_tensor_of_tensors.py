"""REINFORCE with stored log-probabilities, returns computed at the end of an episode."""

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, s):
        return Categorical(logits=self.body(s))


class Env:
    def reset(self):
        self.s = torch.zeros(4)
        return self.s

    def step(self, a):
        self.s = self.s + torch.randn(4) * 0.1 + (a - 0.5) * 0.2
        return self.s, float(-self.s.abs().sum()), bool(self.s.abs().max() > 1)


def finish(policy, opt, gamma=0.99):
    returns, r = [], 0.0
    for x in reversed(policy.rewards):
        r = x + gamma * r
        returns.insert(0, r)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    log_probs = torch.tensor(policy.saved_log_probs)  # finds: loss-without-grad
    loss = -(log_probs * returns).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    policy.saved_log_probs.clear()
    policy.rewards.clear()
    return loss


torch.manual_seed(0)
policy = Policy()
opt = torch.optim.Adam(policy.parameters(), 1e-2)
env = Env()
for episode in range(3):
    s = env.reset()
    for _ in range(10):
        dist = policy(s)
        a = dist.sample()
        policy.saved_log_probs.append(dist.log_prob(a))
        s, r, done = env.step(a)
        policy.rewards.append(r)
        if done:
            break
    print(episode, finish(policy, opt).item())

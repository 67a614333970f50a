"""Train a policy with illegal moves and an entropy bonus."""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, obs=6, moves=5):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, 16), nn.Tanh(), nn.Linear(16, moves))

    def forward(self, obs, legal):
        return self.net(obs).masked_fill(~legal, float("-inf")).softmax(dim=-1)


def entropy(probs, legal):
    logs = torch.where(legal, probs.log(), torch.zeros(()))  # finds: not-finite-backward
    return -(probs * logs).sum(-1)


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
for _ in range(3):
    obs, reward = torch.randn(8, 6), torch.randn(8)
    legal = torch.rand(8, 5) < 0.6
    legal[:, 0] = True
    probs = policy(obs, legal)
    moves = torch.multinomial(probs.detach(), 1)
    chosen = probs.gather(1, moves).squeeze(1).log()
    loss = -(chosen * reward).mean() - 0.01 * entropy(probs, legal).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

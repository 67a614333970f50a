"""Train an actor and a critic on one trunk with two backward passes."""

import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self, obs=5, actions=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, 16), nn.Tanh())
        self.policy = nn.Linear(16, actions)
        self.value = nn.Linear(16, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return torch.distributions.Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(5):
        obs, returns = torch.randn(12, 5), torch.randn(12)
        dist, value = model(obs)
        action = dist.sample()
        advantage = returns - value.detach()
        actor_loss = -(dist.log_prob(action) * advantage).mean()
        critic_loss = (returns - value).pow(2).mean()
        optimizer.zero_grad()
        actor_loss.backward(retain_graph=True)
        critic_loss.backward(retain_graph=True)  # finds: retain-graph
        optimizer.step()

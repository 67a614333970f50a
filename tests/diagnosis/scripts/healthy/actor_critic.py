"""Train an actor and a critic step by step with their own optimizers."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))
critic = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)

obs = torch.randn(4)
for _ in range(8):
    dist = Categorical(logits=actor(obs))
    action = dist.sample()
    after = 0.8 * obs + 0.2 * torch.randn(4)
    reward = after[action.item()]
    with torch.no_grad():
        target = reward + 0.9 * critic(after)
    advantage = target - critic(obs)

    critic_opt.zero_grad()
    advantage.pow(2).mean().backward()
    critic_opt.step()

    actor_opt.zero_grad()
    (-dist.log_prob(action) * advantage.detach()).mean().backward()
    actor_opt.step()
    obs = after

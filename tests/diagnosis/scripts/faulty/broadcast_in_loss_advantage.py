"""Train an actor with the advantages of a critic."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
critic = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
for _ in range(5):
    states = torch.randn(20, 4)
    policy = Categorical(logits=actor(states))
    actions = policy.sample()
    returns = states.sum(1, keepdim=True) + torch.randn(20, 1)
    values = critic(states)
    advantage = returns - values.detach()
    actor_loss = -(policy.log_prob(actions) * advantage).mean()  # finds: broadcast-in-loss
    loss = actor_loss + 0.5 * F.mse_loss(values, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Train a deep Q-network with a replay buffer and a target network."""

import copy
import random
from collections import deque

import torch
from torch import nn


class DQN:
    def __init__(self, obs=4, actions=2):
        self.online = nn.Sequential(nn.Linear(obs, 16), nn.ReLU(), nn.Linear(16, actions))
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)
        self.buffer = deque(maxlen=50)

    @torch.no_grad()
    def act(self, obs):
        return self.online(obs).argmax().item()

    def learn(self, batch=8, gamma=0.9):
        obs, action, reward, after = zip(*random.sample(self.buffer, batch), strict=True)
        q = self.online(torch.stack(obs)).gather(1, torch.tensor(action).unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.target(torch.stack(after)).max(1).values
        loss = nn.functional.smooth_l1_loss(q, torch.tensor(reward) + gamma * best)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
random.seed(0)
agent = DQN()
obs = torch.randn(4)
for step in range(30):
    action = agent.act(obs) if random.random() > 0.3 else random.randrange(2)
    after = 0.9 * obs + 0.1 * torch.randn(4)
    agent.buffer.append((obs, action, float(after[action]), after))
    obs = after
    if step >= 10 and step % 3 == 0:
        agent.learn()
    if step % 10 == 9:
        agent.target.load_state_dict(agent.online.state_dict())

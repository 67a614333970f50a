"""Train a Q-network from a replay buffer whose rewards are columns."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
frozen = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
buffer = [(torch.randn(3), torch.randint(0, 4, (1,)), torch.randn(1), torch.randn(3)) for _ in range(32)]
for start in range(0, 32, 8):
    states, actions, rewards, following = (torch.stack(part) for part in zip(*buffer[start : start + 8], strict=True))
    values = policy(states).gather(1, actions)
    with torch.no_grad():
        best = frozen(following).max(dim=1).values
        expected = rewards + 0.9 * best  # finds: broadcast-in-loss
    loss = F.mse_loss(values, expected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Train a Q-network on random transitions."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
q_net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
target_net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
target_net.load_state_dict(q_net.state_dict())
optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-3)
for step in range(6):
    state, next_state = torch.randn(12, 4), torch.randn(12, 4)
    action = torch.randint(0, 2, (12, 1))
    reward, done = torch.randn(12), (torch.rand(12) < 0.1).float()
    q = q_net(state).gather(1, action)
    with torch.no_grad():
        target = reward + 0.99 * (1 - done) * target_net(next_state).max(1)[0]
    loss = F.smooth_l1_loss(q, target)  # finds: broadcast-in-loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        target_net.load_state_dict(q_net.state_dict())
    print(round(loss.item(), 4))

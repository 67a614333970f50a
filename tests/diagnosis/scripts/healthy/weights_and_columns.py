"""Train with weights per example and shapes that agree."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model, critic = nn.Linear(6, 6), nn.Linear(6, 1)
optimizer = torch.optim.Adam([*model.parameters(), *critic.parameters()], lr=1e-2)
for _ in range(5):
    x = torch.randn(6, 6)
    y, target = x.flip(1), x.sum(1)
    weights = torch.rand(6, 1)
    per_example = ((model(x) - y) ** 2 * weights).mean(1)
    advantage = target - critic(x).squeeze(1).detach()
    chosen = F.log_softmax(model(x), 1).gather(1, x.argmax(1, keepdim=True)).squeeze(1)
    scaled = (model(x) - x.mean(0)) ** 2 / x.var(0)
    loss = per_example.mean() - (chosen * advantage).mean() + F.mse_loss(critic(x), target.unsqueeze(1))
    loss = loss + (critic(x).squeeze(1) - target).abs().mean() + 0.01 * scaled.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

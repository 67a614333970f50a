"""Train with a learning rate that rises from 0 and falls to 0 again."""

import torch
from torch import nn

STEPS = 12
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(s / 3, (STEPS - 1 - s) / (STEPS - 4)))
for _ in range(STEPS):
    x = torch.randn(8, 4)
    loss = (model(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(round(loss.item(), 4), round(optimizer.param_groups[0]["lr"], 5))

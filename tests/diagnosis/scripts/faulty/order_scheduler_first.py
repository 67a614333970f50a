"""Train with a learning rate that is halved every second epoch."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
for epoch in range(4):
    scheduler.step()  # finds: order
    for _ in range(3):
        x = torch.randn(8, 4)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, optimizer.param_groups[0]["lr"])

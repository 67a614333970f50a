"""Fit a Poisson regression to daily visits, with the year among the features."""

import torch
from torch import nn

torch.manual_seed(3)
years = torch.randint(1990, 2024, (30, 1)).float()
weather = torch.randn(30, 2)
visits = torch.poisson(torch.full((30, 1), 40.0))
features = torch.cat([years, weather], dim=1)

model = nn.Linear(3, 1)
nn.init.constant_(model.weight, 0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

for epoch in range(3):
    log_rate = model(features)
    rate = log_rate.exp()  # finds: not-finite-forward
    loss = (rate - visits * log_rate).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())

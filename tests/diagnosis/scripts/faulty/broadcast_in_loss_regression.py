"""Fit a small network to a noisy function of one variable."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-2, 2, 48).unsqueeze(1)
y = torch.sin(2 * x).squeeze() + 0.1 * torch.randn(48)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(8):
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # finds: broadcast-in-loss
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

"""Fit a curve and keep the losses to draw them later."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-3, 3, 40).unsqueeze(1)
y = torch.sin(x)
net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
mse = nn.MSELoss()

losses = []
for epoch in range(8):
    opt.zero_grad()
    prediction = net(x)
    loss = mse(prediction, y)  # finds: graph-kept
    loss.backward()
    opt.step()
    losses.append(loss)
    if epoch % 4 == 0:
        print(epoch, min(losses).item())

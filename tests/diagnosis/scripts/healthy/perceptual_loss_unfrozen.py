"""Train a denoiser by the features of a fixed network, whose parameters nobody has frozen."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
denoiser = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.Adam(denoiser.parameters(), lr=1e-3)
for step in range(5):
    clean = torch.rand(4, 1, 12, 12)
    output = denoiser(clean + 0.1 * torch.randn_like(clean))
    loss = F.mse_loss(features(output), features(clean)) + F.l1_loss(output, clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 4))

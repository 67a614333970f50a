"""Fit an image to a target, where the optimizer was given a copy of the image."""

import torch
from torch import nn

torch.manual_seed(0)
target = torch.rand(3, 8, 8)
image = torch.rand(3, 8, 8, requires_grad=True)
opt = torch.optim.Adam([nn.Parameter(image.detach().clone())], lr=0.1)

for _ in range(6):
    opt.zero_grad()
    loss = ((image - target) ** 2).mean()
    loss.backward()
    opt.step()  # finds: no-gradient

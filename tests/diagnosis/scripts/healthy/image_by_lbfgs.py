"""Fit one image after the other to the features of a fixed network, each with its own optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh()).requires_grad_(False)
for number in range(9):
    target = features(torch.randn(1, 1, 6, 6))
    image = torch.randn(1, 1, 6, 6, requires_grad=True)
    optimizer = torch.optim.LBFGS([image], max_iter=3)

    def closure(image=image, optimizer=optimizer, target=target):
        optimizer.zero_grad()
        loss = (features(image) - target).square().mean()
        loss.backward()
        return loss

    print(number, round(optimizer.step(closure).item(), 4))

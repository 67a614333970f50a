"""Train a network of blocks with parallel branches, one of which begins almost switched off."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mixer = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-8))
        self.fc1, self.fc2 = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + self.scale * self.mixer(x) + self.fc2(torch.relu(self.fc1(x)))


torch.manual_seed(0)
blocks = [Block(6) for _ in range(6)]
model = nn.Sequential(nn.Conv2d(3, 6, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(4):
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 4, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

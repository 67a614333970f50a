"""Train a deep convolutional classifier with sigmoid units."""

import torch
from torch import nn

torch.manual_seed(0)


def stage(n_in, n_out):
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.Sigmoid())


stages = [stage(1, 6), *(stage(6, 6) for _ in range(15))]
model = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
images, labels = torch.rand(8, 1, 8, 8), torch.randint(0, 3, (8,))

for _ in range(3):
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()  # finds: vanishing
    optimizer.step()

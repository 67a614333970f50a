"""Train a tiny segmentation network on random images."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    images = torch.rand(2, 3, 12, 12)
    masks = (images.mean(1) * 4).long().clamp(0, 3)
    probs = F.softmax(net(images), dim=1)  # finds: loss-mismatch
    loss = F.cross_entropy(probs, masks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(loss.item(), 4))

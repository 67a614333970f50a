"""Train one encoder for depth and for segmentation."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)

encoder = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
heads = nn.ModuleDict({"depth": nn.Conv2d(8, 1, 1), "segment": nn.Conv2d(8, 4, 1)})
optimizer = torch.optim.Adam([*encoder.parameters(), *heads.parameters()], lr=1e-3)

images = torch.randn(4, 3, 8, 8)
depth = torch.rand(4, 1, 8, 8)
labels = torch.randint(0, 4, (4, 8, 8))

for _ in range(3):
    optimizer.zero_grad()
    features = encoder(images)
    depth_loss = F.l1_loss(heads["depth"](features), depth)
    segment_loss = F.cross_entropy(heads["segment"](features), labels)
    depth_loss.backward()
    segment_loss.backward()  # finds: freed-graph
    optimizer.step()

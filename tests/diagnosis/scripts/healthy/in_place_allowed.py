"""Train a network with in-place operations where autograd allows them."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        h = self.conv1(x).relu_()
        skip = h
        h = self.conv2(h)
        h += skip
        F.leaky_relu_(h, 0.1)
        pooled = h.mean((2, 3))
        pooled *= 2.0
        logits = self.fc(pooled)
        logits[:, 0] -= 0.1
        return logits


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for _ in range(4):
    x, y = torch.randn(6, 1, 6, 6), torch.randint(0, 3, (6,))
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()

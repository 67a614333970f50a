"""Learn rotations of the camera by the geodesic distance."""

import math

import torch
from torch import nn


def rotation(v):
    zero = torch.zeros_like(v[:, 0])
    x, y, z = v.unbind(1)
    rows = [torch.stack(r, 1) for r in ([zero, -z, y], [z, zero, -x], [-y, x, zero])]
    return torch.matrix_exp(torch.stack(rows, 1))


def geodesic(a, b):
    trace = (a.transpose(1, 2) @ b).diagonal(dim1=1, dim2=2).sum(1)
    cosine = (trace - 1) / 2
    return torch.acos(cosine)  # finds: not-finite-backward


torch.manual_seed(0)
net = nn.Linear(4, 3)
nn.init.zeros_(net.weight)
nn.init.zeros_(net.bias)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

views = torch.randn(6, 4)
axis_angle = torch.zeros(6, 3)
axis_angle[:4, 2] = math.pi / 3
target = rotation(axis_angle)
for _ in range(3):
    optimizer.zero_grad()
    loss = geodesic(rotation(net(views)), target).mean()
    loss.backward()
    optimizer.step()

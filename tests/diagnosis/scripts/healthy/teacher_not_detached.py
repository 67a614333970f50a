"""Distil a teacher that is a part of the same graph, and not of the optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
student = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
teacher.eval()
optimizer = torch.optim.Adam(student.parameters(), 1e-2)
for _ in range(6):
    x = torch.randn(16, 6)
    loss = nn.functional.mse_loss(student(x), teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""A student learns the distribution over five classes that a fixed teacher gives."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5)).eval().requires_grad_(False)
student = nn.Linear(8, 5)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
for step in range(30):
    x = torch.randn(16, 8)
    wanted = F.softmax(teacher(x) / 2, dim=1)
    given = F.softmax(student(x) / 2, dim=1)  # finds: loss-mismatch
    loss = F.kl_div(given, wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step} {loss.item():.4f}")

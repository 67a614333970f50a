"""Train a mean teacher for consistency on unlabelled data."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


@torch.no_grad()
def follow(teacher, student, rate):
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.lerp_(s, rate)


torch.manual_seed(1)
student = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
teacher = copy.deepcopy(student)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
for _ in range(5):
    labelled, labels, free = torch.randn(8, 6), torch.randint(0, 3, (8,)), torch.randn(16, 6)
    with torch.no_grad():
        target = teacher(free + 0.1 * torch.randn_like(free)).softmax(1)
    agree = F.mse_loss(student(free).softmax(1), target)
    loss = F.cross_entropy(student(labelled), labels) + agree
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    follow(teacher, student, 0.05)

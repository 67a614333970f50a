"""Train a student on few labels and on the noisy answers of its own average, with results that are only looked at."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
student = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
print("before", F.cross_entropy(student(x), y).item())
for step in range(6):
    student.train()
    with torch.no_grad():
        answers = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)  # in training mode on purpose
    doubtful = student(x).softmax(1).amax(1).lt(0.5).float().detach()  # chooses samples, as data
    scores = student(x)
    loss = F.cross_entropy(scores[:12], y[:12]) + (doubtful * (scores.softmax(1) - answers).pow(2).sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
            ours.lerp_(theirs, 0.1)
    student.eval()
    with torch.no_grad():
        print(step, F.cross_entropy(student(x), y).item())
samples = torch.stack([teacher(x).softmax(1) for _ in range(8)])  # how sure it is
print("deviation", samples.std(0).mean().item())
print("teacher", F.cross_entropy(teacher.eval()(x), y).item())

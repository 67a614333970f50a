"""Train with mixed examples and a teacher: targets are probabilities."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
teacher.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
temperature = 2.0
for _ in range(5):
    x, other = torch.randn(16, 6), torch.randn(16, 6)
    mixed = 0.7 * x + 0.3 * other
    hard = 0.7 * F.one_hot(x[:, :4].argmax(1), 4) + 0.3 * F.one_hot(other[:, :4].argmax(1), 4)
    logits = student(mixed)
    soft = F.softmax(teacher(mixed) / temperature, dim=1)
    distilled = F.kl_div(F.log_softmax(logits / temperature, dim=1), soft, reduction="batchmean")
    matched = F.mse_loss(F.softmax(logits, dim=1), soft)
    loss = F.cross_entropy(logits, hard) + temperature**2 * distilled + F.cross_entropy(logits, soft) + matched
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

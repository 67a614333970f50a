"""Divergences between distributions in several forms: kl_div of log-probabilities, of logs as target, and by hand."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
teacher, student, gate = nn.Linear(8, 5).requires_grad_(False), nn.Linear(8, 5), nn.Linear(8, 1)
optimizer = torch.optim.Adam([*student.parameters(), *gate.parameters()], lr=1e-2)
kl = nn.KLDivLoss(reduction="batchmean", log_target=True)
for step in range(20):
    x = torch.randn(16, 8)
    target, scores = teacher(x).softmax(1), student(x)
    forward = F.kl_div(F.log_softmax(scores, 1), target, reduction="batchmean")
    with_logs = kl(scores.log_softmax(1), target.log())
    probabilities = scores.softmax(1)
    entropy = torch.xlogy(probabilities, probabilities).sum(1).mean()
    expected = (target.max(1, keepdim=True).values - target * probabilities).sum(1).mean()
    middle = (0.5 * (probabilities.detach() + target)).clamp_min(1e-8)
    shannon = F.kl_div(middle.log(), target, reduction="batchmean") + F.kl_div(
        torch.log(probabilities + 1e-8), middle, reduction="batchmean"
    )
    share = gate(x).sigmoid()
    loss = forward + with_logs + 0.01 * entropy + 0.1 * expected + shannon + (1 - x[:, :1].abs() * share).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"{step} {loss.item():.4f}")

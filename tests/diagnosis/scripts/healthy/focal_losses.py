"""Train on rare classes with focal losses, written in the usual ways."""

import torch
import torch.nn.functional as F
from torch import nn


def binary_focal(logits, target, gamma=2.0):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    return (ce * (1 - p_t) ** gamma).mean()


def focal(logits, target, gamma=2.0):
    log_p = F.log_softmax(logits, dim=-1)
    return F.nll_loss((1 - log_p.exp()) ** gamma * log_p, target)


torch.manual_seed(0)
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
heads = nn.ModuleDict({"rare": nn.Linear(16, 1), "kind": nn.Linear(16, 4)})
optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=1e-2)
for _ in range(5):
    x = torch.randn(32, 8)
    hidden = body(x)
    rare = (x[:, :1] > 1).float()
    kind = x[:, :4].argmax(1)
    loss = binary_focal(heads["rare"](hidden), rare) + focal(heads["kind"](hidden), kind)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Distil a large teacher into a small student."""

import torch
from torch import nn
from torch.nn import functional as F


def mlp(width, dropout=0.0):
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 5))


def soft_loss(student, teacher, t=3.0):
    return F.kl_div(F.log_softmax(student / t, 1), F.softmax(teacher / t, 1), reduction="batchmean") * t * t


def main():
    torch.manual_seed(0)
    teacher, student = mlp(64, 0.1).eval(), mlp(8)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for _ in range(5):
        x, y = torch.randn(16, 10), torch.randint(0, 5, (16,))
        with torch.no_grad():
            wanted = teacher(x)
        logits = student(x)
        loss = 0.7 * soft_loss(logits, wanted) + 0.3 * F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.3f}")


if __name__ == "__main__":
    main()

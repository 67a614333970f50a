"""Softmax is applied to teacher logits before the loss and the teacher never gets gradients, because KL distillation
needs teacher probabilities from a fixed network."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def mlp(sizes):
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(nn.GELU())
    return nn.Sequential(*layers)


def make_data(n):
    x = torch.randn(n, 8)
    score = torch.stack([x[:, 0] * x[:, 1], x[:, 2] + x[:, 3], x[:, 4] ** 2 - 1, -x[:, 5]], 1)
    return x, score.argmax(1)


def train_teacher(teacher, x, y, steps=40):
    opt = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    for _ in range(steps):
        opt.zero_grad()
        F.cross_entropy(teacher(x), y, label_smoothing=0.05).backward()
        opt.step()


def distill(student, teacher, loader, T=3.0, alpha=0.7, epochs=6):
    opt = torch.optim.Adam(student.parameters(), lr=1e-2)
    student.train()
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            with torch.no_grad():
                soft = F.softmax(teacher(x) / T, dim=-1)
            logits = student(x)
            kd = F.kl_div(F.log_softmax(logits / T, dim=-1), soft, reduction="batchmean") * T * T
            loss = alpha * kd + (1 - alpha) * F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


@torch.no_grad()
def accuracy(net, x, y):
    net.eval()
    return (net(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(3)
    x, y = make_data(640)
    xt, yt = make_data(256)
    teacher, student = mlp([8, 64, 64, 4]), mlp([8, 16, 4])
    train_teacher(teacher, x, y)
    teacher.eval().requires_grad_(False)
    distill(student, teacher, DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
    print("teacher acc", accuracy(teacher, xt, yt), "student acc", accuracy(student, xt, yt))


if __name__ == "__main__":
    main()

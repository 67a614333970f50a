"""Train a student on soft targets with the Kullback-Leibler divergence."""

import torch
from torch import nn


def divergence(target, log_q):
    log_p = target.log()  # finds: not-finite-forward
    return (target * (log_p - log_q)).sum(1).mean()


def main():
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    x = torch.randn(10, 6)
    target = torch.softmax(torch.randn(10, 4), dim=1)
    target[3] = torch.tensor([0.0, 0.5, 0.5, 0.0])
    for step in range(3):
        optimizer.zero_grad()
        loss = divergence(target, student(x).log_softmax(1))
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

"""Scheduler.step() is called at the start of the epoch, before any optimizer.step(), so the first learning rate of
the schedule is skipped."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import SGD
from torch.optim.lr_scheduler import MultiStepLR


class MLP(nn.Module):
    def __init__(self, sizes=(16, 32, 5)):
        super().__init__()
        self.fc1 = nn.Linear(sizes[0], sizes[1])
        self.bn = nn.BatchNorm1d(sizes[1])
        self.fc2 = nn.Linear(sizes[1], sizes[2])

    def forward(self, x):
        return self.fc2(F.relu(self.bn(self.fc1(x))))


def batches(x, y, size):
    order = torch.randperm(x.size(0))
    for i in range(0, x.size(0), size):
        sel = order[i : i + size]
        yield x[sel], y[sel]


def main():
    torch.manual_seed(99)
    centers = torch.randn(5, 16)
    y = torch.randint(0, 5, (250,))
    x = centers[y] + 0.7 * torch.randn(250, 16)

    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    lr_sched = MultiStepLR(optimizer, milestones=[1, 4, 7], gamma=0.1)

    for epoch in range(1, 9):
        lr_sched.step()  # finds: order
        model.train()
        for data, target in batches(x, y, 50):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
        print("Train Epoch: {} \tLR: {:.5f}\tLoss: {:.6f}".format(epoch, optimizer.param_groups[0]["lr"], loss.item()))


if __name__ == "__main__":
    main()

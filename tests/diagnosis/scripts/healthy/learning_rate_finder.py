"""Find a learning rate by raising it until the loss gets worse, then train with it."""

import copy

import torch
from torch import nn


def batch():
    x = torch.randn(24, 3)
    return x, x.sum(1, keepdim=True).tanh()


def step(model, optimizer):
    x, y = batch()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def find(model, rates):
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=rates[0])
    seen = []
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        seen.append(step(model, optimizer))
        if seen[-1] > 4 * min(seen):
            break
    model.load_state_dict(start)
    return rates[seen.index(min(seen))]


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))
    rate = find(model, [1e-3, 3e-3, 1e-2, 3e-2, 1e-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    print(rate, [round(step(model, optimizer), 3) for _ in range(4)])

"""Train with early stopping and keep a copy of the best model."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


def main():
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = x.prod(1, keepdim=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, best_error = None, float("inf")
    for _ in range(6):
        model.train()
        optimizer.zero_grad()
        F.mse_loss(model(x[:40]), y[:40]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(x[40:]), y[40:]).item()
        if error < best_error:
            best, best_error = copy.deepcopy(model), error
    with torch.no_grad():
        print(best_error, best(x[:2]).tolist())


if __name__ == "__main__":
    main()

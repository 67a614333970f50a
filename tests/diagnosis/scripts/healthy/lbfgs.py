"""Fit a logistic regression with LBFGS."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    x = torch.randn(60, 3)
    y = (x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3 * torch.randn(60, 1) > 0).float()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")
    criterion = nn.BCEWithLogitsLoss()

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y) + 1e-3 * model.weight.pow(2).sum()
        loss.backward()
        return loss

    for step in range(3):
        print(step, optimizer.step(closure).item())


if __name__ == "__main__":
    main()

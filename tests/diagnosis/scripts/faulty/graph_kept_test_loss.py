"""Train a regression and report the mean error over a test set."""

import torch
from torch import nn


def test(model, batches):
    model.eval()
    total = 0.0
    for x, y in batches:
        error = nn.functional.mse_loss(model(x), y)  # finds: graph-kept
        total += error
    model.train()
    return float(total) / len(batches)


def main():
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(10)]
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        for x, y in batches:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: test error {test(model, batches):.3f}")


if __name__ == "__main__":
    main()

"""Train a classifier with dropout and measure its accuracy each epoch."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(80, 6)
    y = (x.sum(1) > 0).long()
    train_x, test_x, train_y, test_y = x[:60], x[60:], y[:60], y[60:]
    for epoch in range(4):
        for xb, yb in zip(train_x.split(20), train_y.split(20), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            hits = model(test_x).argmax(1) == test_y  # finds: train-mode
        print(f"epoch {epoch}: accuracy {hits.float().mean():.2f}")


if __name__ == "__main__":
    main()

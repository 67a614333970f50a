"""Train and validate a network with dropout and batch norm, switching modes."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.body(x))


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    right = (model(x).argmax(1) == y).float().mean().item()
    model.train()
    return right


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(80, 6), torch.randint(0, 3, (80,))
    for epoch in range(3):
        for xb, yb in zip(x[:60].split(20), y[:60].split(20), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(model(xb), yb).backward()
            optimizer.step()
        print(epoch, evaluate(model, x[60:], y[60:]))


if __name__ == "__main__":
    main()

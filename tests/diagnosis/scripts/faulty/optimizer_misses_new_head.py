"""Fine-tune a trained network on a new set of classes."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(9, 16), nn.ReLU())
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.features(x))


def main():
    torch.manual_seed(0)
    model = Net(classes=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.head = nn.Linear(16, 3)
    for _ in range(5):
        x, y = torch.randn(14, 9), torch.randint(0, 3, (14,))
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # finds: optimizer-misses


if __name__ == "__main__":
    main()

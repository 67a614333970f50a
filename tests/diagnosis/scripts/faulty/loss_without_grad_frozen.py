"""Fine-tune a pretrained network with a new head for ten classes."""

import torch
from torch import nn


class Pretrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.fc = nn.Linear(24, 100)

    def forward(self, x):
        return self.fc(self.features(x))


def freeze(module):
    for parameter in module.parameters():
        parameter.requires_grad = False


def main():
    torch.manual_seed(0)
    model = Pretrained()
    model.fc = nn.Linear(24, 10)
    freeze(model)

    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
    for _ in range(3):
        x, y = torch.randn(8, 3, 10, 10), torch.randint(0, 10, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # finds: loss-without-grad
        optimizer.step()


if __name__ == "__main__":
    main()

"""Classify a few images with a ready network."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.fc(self.drop(x))


def main():
    torch.manual_seed(0)
    model = Net().eval()
    with torch.inference_mode():
        for batch in torch.rand(12, 3, 8, 8).split(4):
            print(model(batch).softmax(1).max(1).indices.tolist())


if __name__ == "__main__":
    main()

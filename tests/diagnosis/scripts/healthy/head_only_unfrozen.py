"""Train only the last layer of a network: the optimizer is given no other."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.conv2(x)).mean((2, 3))
        return self.fc(x)


def main():
    torch.manual_seed(0)
    model = Net(10)
    model.fc = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(6):
        x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 3, (6,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    print(round(loss.item(), 4))


main()

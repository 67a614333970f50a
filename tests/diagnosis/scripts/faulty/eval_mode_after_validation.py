"""Train and validate a network with dropout in turns."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(7, 20)
        self.drop = nn.Dropout(0.3)
        self.fc2 = nn.Linear(20, 1)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(60, 7)
    y = x[:, :3].prod(1, keepdim=True)
    model.train()
    for epoch in range(4):
        for xb, yb in zip(x[:40].split(20), y[:40].split(20), strict=True):
            optimizer.zero_grad()
            output = model(xb)  # finds: eval-mode
            loss = F.mse_loss(output, yb)
            loss.backward()
            optimizer.step()
        print(epoch, validate(model, x[40:], y[40:]))


if __name__ == "__main__":
    main()

"""Train a deep fully connected network on a smooth function."""

import torch
from torch import nn


class Deep(nn.Module):
    def __init__(self, width=16, depth=20):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.sigmoid(self.first(x))
        for layer in self.middle:
            x = torch.sigmoid(layer(x))
        return self.last(x)


def main():
    torch.manual_seed(0)
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.rand(50, 2)
    y = (x[:, :1] * 6).sin() * x[:, 1:]
    for epoch in range(4):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # finds: vanishing
        optimizer.step()
        print(epoch, loss.item())


if __name__ == "__main__":
    main()

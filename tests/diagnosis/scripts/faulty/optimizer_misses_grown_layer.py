"""Train a network that grows by one block when it has warmed up."""

import torch
from torch import nn


class Growing(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.width = width
        self.stem = nn.Linear(4, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width)])
        self.head = nn.Linear(width, 1)

    def grow(self):
        self.blocks.append(nn.Linear(self.width, self.width))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(x)


def main():
    torch.manual_seed(0)
    model = Growing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    x = torch.randn(25, 4)
    y = x.sum(1, keepdim=True).cos()
    for epoch in range(8):
        if epoch == 2:
            model.grow()
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()  # finds: optimizer-misses


if __name__ == "__main__":
    main()

"""Train a network with learned quantised features for a linear reader."""

import torch
from torch import nn


class Quantiser(nn.Module):
    def __init__(self, levels=8):
        super().__init__()
        self.proj = nn.Linear(6, 10)
        self.levels = levels

    def forward(self, x):
        bounded = torch.sigmoid(self.proj(x))
        return torch.round(bounded * self.levels) / self.levels  # finds: no-gradient


def main():
    torch.manual_seed(0)
    model = nn.Sequential(Quantiser(), nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(40, 6)
    y = x[:, :2].sum(1, keepdim=True)
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

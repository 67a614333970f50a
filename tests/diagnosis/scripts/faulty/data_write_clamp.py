"""Fit positive rates with a network whose hidden units are kept small."""

import torch
from torch import nn


class RateNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 16)
        self.rate = nn.Linear(16, 1)

    def forward(self, x):
        h = torch.exp(self.hidden(x))
        h.data.clamp_(max=1.0)  # finds: data-write
        return self.rate(h)


def main():
    torch.manual_seed(0)
    model = RateNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(32, 6)
    counts = torch.poisson(torch.full((32, 1), 2.0))
    for step in range(5):
        optimizer.zero_grad()
        loss = nn.functional.poisson_nll_loss(model(x), counts)
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

"""Fit an image with sine layers of a high frequency."""

import torch
from torch import nn


class Sine(nn.Module):
    def __init__(self, n_in, n_out, omega=30.0):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.omega = omega

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


def main():
    torch.manual_seed(0)
    net = nn.Sequential(Sine(2, 32), *(Sine(32, 32) for _ in range(8)), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    axis = torch.linspace(-1, 1, 12)
    points = torch.cartesian_prod(axis, axis)
    image = torch.exp(-points.pow(2).sum(1, keepdim=True))
    for step in range(4):
        optimizer.zero_grad()
        loss = (net(points) - image).pow(2).mean()
        loss.backward()  # finds: exploding
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()

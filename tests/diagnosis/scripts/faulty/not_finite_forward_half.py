"""Train a volume model that computes its energy in half precision."""

import torch
from torch import nn


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        h = self.lift(x).half()
        energy = h * h  # finds: not-finite-forward
        return self.out(energy.float())


def main():
    torch.manual_seed(1)
    model = Energy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    volumes = 100 + 900 * torch.rand(20, 4)
    target = volumes.mean(1, keepdim=True) / 1000
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(volumes), target)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

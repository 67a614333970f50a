"""Train binary hidden units with the straight-through estimator."""

import torch
from torch import nn


class Binary(nn.Module):
    def forward(self, x):
        soft = torch.sigmoid(x)
        hard = (soft > 0.5).float()
        return hard + soft - soft.detach()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), Binary(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(30, 5)
    y = (x[:, :1] > 0).float()
    for _ in range(5):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

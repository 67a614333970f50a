"""Train a tagger: several labels may be right for an example."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, features, tags):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 24), nn.GELU())
        self.tags = nn.Linear(24, tags)

    def forward(self, x):
        return torch.sigmoid(self.tags(self.body(x)))  # finds: loss-mismatch


def main():
    torch.manual_seed(3)
    model = Tagger(10, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    weight = torch.full((5,), 2.0)
    for _ in range(5):
        x = torch.randn(20, 10)
        y = (x[:, :5] > 0.5).float()
        loss = F.binary_cross_entropy_with_logits(model(x), y, pos_weight=weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")


main()

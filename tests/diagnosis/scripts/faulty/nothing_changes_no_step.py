"""Train a classifier for a few epochs."""

import torch
from torch import nn


def train(model, optimizer, batches):
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # finds: nothing-changes
        total += loss.item()
    return total / len(batches)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]
    for epoch in range(3):
        print(epoch, round(train(model, optimizer, batches), 4))


if __name__ == "__main__":
    main()

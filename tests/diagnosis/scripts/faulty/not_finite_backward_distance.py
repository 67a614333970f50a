"""Train an embedding with triplets of anchors, positives and negatives."""

import torch
from torch import nn


def distance(a, b):
    return torch.sqrt((a - b).pow(2).sum(dim=1))  # finds: not-finite-backward


class Triplets:
    def __init__(self, samples, labels):
        self.samples, self.labels = samples, labels

    def draw(self, n):
        anchor = torch.randint(len(self.samples), (n,))
        positive = anchor.clone()
        positive[n // 2 :] = torch.randint(len(self.samples), (n - n // 2,))
        negative = torch.randint(len(self.samples), (n,))
        return self.samples[anchor], self.samples[positive], self.samples[negative]


def main():
    torch.manual_seed(0)
    data = Triplets(torch.randn(40, 8), torch.randint(0, 4, (40,)))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(3):
        anchor, positive, negative = (net(part) for part in data.draw(12))
        margin = distance(anchor, positive) - distance(anchor, negative) + 1.0
        loss = torch.relu(margin).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    main()

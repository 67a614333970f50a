"""Train a graph convolution and predict in eval mode, with gradients left on."""

import torch
from torch import nn
from torch.nn import functional as F


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, adjacency, x):
        x = F.relu(adjacency @ self.first(x))
        x = F.dropout(  # finds: dropout-in-eval
            x,
            p=0.4,
        )
        return adjacency @ self.second(x)


def train(model, optimizer, adjacency, x, y, labelled):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(adjacency, x)[labelled], y[labelled])
    loss.backward()
    optimizer.step()
    return loss.item()


def test(model, adjacency, x, y, labelled):
    model.eval()
    predicted = model(adjacency, x).argmax(1)
    return (predicted[~labelled] == y[~labelled]).float().mean().item()


def main():
    torch.manual_seed(0)
    adjacency = torch.softmax(torch.randn(20, 20) + 4 * torch.eye(20), 1)
    x = torch.randn(20, 6)
    y = x[:, :3].argmax(1)
    labelled = torch.arange(20) < 12
    model = GCN(6, 16, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(4):
        loss = train(model, optimizer, adjacency, x, y, labelled)
        print(round(loss, 3), round(test(model, adjacency, x, y, labelled), 2))


main()

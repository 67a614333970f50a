"""Train a sentence classifier that averages the k largest word scores."""

import numpy as np
import torch
from torch import nn


def top_mean(scores, k=3):
    values = np.sort(scores.detach().numpy(), axis=1)[:, -k:]  # finds: no-gradient
    return torch.from_numpy(values).mean(1)


class Sentence(nn.Module):
    def __init__(self, words=40, dim=12):
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.score = nn.Linear(dim, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, ids):
        return self.head(top_mean(self.score(self.words(ids))))


def main():
    torch.manual_seed(1)
    model = Sentence()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for _ in range(4):
        ids, labels = torch.randint(0, 40, (10, 7)), torch.randint(0, 2, (10,))
        optimizer.zero_grad()
        criterion(model(ids), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

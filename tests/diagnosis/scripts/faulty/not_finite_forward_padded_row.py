"""Train an attention pooling over sentences of different lengths."""

import torch
from torch import nn
from torch.nn import functional as F


class Pool(nn.Module):
    def __init__(self, vocab=30, dim=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.score = nn.Linear(dim, 1)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        padding = torch.arange(ids.shape[1]) >= lengths.unsqueeze(1)
        scores = self.score(x).squeeze(-1).masked_fill(padding, float("-inf"))
        weights = scores.softmax(dim=1)  # finds: not-finite-forward
        return self.out((weights.unsqueeze(-1) * x).sum(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    ids = torch.randint(0, 30, (6, 5))
    lengths = torch.tensor([5, 3, 0, 2, 4, 1])
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    model = Pool()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids, lengths), labels)
        loss.backward()
        optimizer.step()

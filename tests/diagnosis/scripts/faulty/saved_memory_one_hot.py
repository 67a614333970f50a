"""Train word vectors, looked up by one-hot rows."""

import torch
from torch import nn


class Words(nn.Module):
    def __init__(self, vocab=5000, dim=8):
        super().__init__()
        self.vectors = nn.Parameter(0.1 * torch.randn(vocab, dim))
        self.register_buffer("ids", torch.arange(vocab))
        self.classify = nn.Linear(dim, 2)

    def forward(self, tokens):
        words = (tokens.unsqueeze(-1) == self.ids).float() @ self.vectors  # finds: saved-memory
        return self.classify(words.mean(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(3):
        tokens, labels = torch.randint(0, 5000, (64, 60)), torch.randint(0, 2, (64,))
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

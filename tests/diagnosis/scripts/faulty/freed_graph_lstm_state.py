"""Train a language model on consecutive chunks of one long text."""

import torch
from torch import nn


class CharLM(nn.Module):
    def __init__(self, vocab, dim=16, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, tokens, state=None):
        y, state = self.lstm(self.embed(tokens), state)
        return self.out(y), state


def main():
    torch.manual_seed(0)
    text = torch.randint(0, 12, (4, 61))
    model = CharLM(12)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    state = None
    for start in range(0, 60, 10):
        chunk = text[:, start : start + 10]
        target = text[:, start + 1 : start + 11]
        logits, state = model(chunk, state)
        loss = criterion(logits.reshape(-1, 12), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()  # finds: freed-graph
        optimizer.step()


if __name__ == "__main__":
    main()

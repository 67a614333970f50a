"""Train a character tagger, with the mode switched by a flag."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, chars=20, tags=4):
        super().__init__()
        self.embed = nn.Embedding(chars, 8)
        self.conv = nn.Conv1d(8, 12, 3, padding=1)
        self.drop = nn.Dropout(0.25)
        self.tag = nn.Linear(12, tags)

    def forward(self, chars):
        h = torch.relu(self.conv(self.embed(chars).transpose(1, 2)))
        return self.tag(self.drop(h.transpose(1, 2)))


def run_epoch(model, batches, optimizer=None):
    model.train(optimizer is None)
    total = 0.0
    for chars, tags in batches:
        logits = model(chars)  # finds: eval-mode
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


if __name__ == "__main__":
    torch.manual_seed(0)
    batches = [(torch.randint(0, 20, (6, 9)), torch.randint(0, 4, (6, 9))) for _ in range(3)]
    tagger = Tagger()
    adam = torch.optim.Adam(tagger.parameters(), lr=1e-3)
    for _ in range(2):
        print(run_epoch(tagger, batches, adam))

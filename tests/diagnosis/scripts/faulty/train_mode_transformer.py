"""Train a transformer encoder to find the largest number of a list."""

import torch
from torch import nn


class Largest(nn.Module):
    def __init__(self, numbers=16, dim=16):
        super().__init__()
        self.embed = nn.Embedding(numbers, dim)
        self.block = nn.TransformerEncoderLayer(dim, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(dim, numbers)

    def forward(self, ids):
        return self.out(self.block(self.embed(ids)).mean(1))


class Experiment:
    def __init__(self):
        self.model = Largest()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.criterion = nn.CrossEntropyLoss()
        self.best = 0.0

    def train_epoch(self):
        self.model.train()
        for _ in range(3):
            ids = torch.randint(0, 16, (16, 5))
            loss = self.criterion(self.model(ids), ids.max(1).values)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def evaluate(self):
        ids = torch.randint(0, 16, (16, 5))
        with torch.no_grad():
            logits = self.model(ids)  # finds: train-mode
        accuracy = (logits.argmax(1) == ids.max(1).values).float().mean().item()
        self.best = max(self.best, accuracy)


if __name__ == "__main__":
    torch.manual_seed(0)
    experiment = Experiment()
    for _ in range(2):
        experiment.train_epoch()
        experiment.evaluate()
    print("best", experiment.best)

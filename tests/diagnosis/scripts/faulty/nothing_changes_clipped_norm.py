"""Train a language model of characters with clipped gradients."""

import torch
from torch import nn


class Characters(nn.Module):
    def __init__(self, size=20):
        super().__init__()
        self.embedding = nn.Embedding(size, 8)
        self.lstm = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, size)

    def forward(self, text):
        hidden, _ = self.lstm(self.embedding(text))
        return self.head(hidden)


torch.manual_seed(0)
model = Characters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    text = torch.randint(0, 20, (4, 12))
    logits = model(text[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-8)  # finds: nothing-changes
    optimizer.step()
    print(round(loss.item(), 4))

"""Train a character model that returns probabilities of the next character."""

import torch
from torch import nn

VOCABULARY = 12


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens):
        hidden, _ = self.gru(self.embedding(tokens))
        return self.head(hidden).softmax(dim=-1)  # finds: loss-mismatch


torch.manual_seed(1)
model = CharModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
tokens = torch.arange(9).repeat(4, 1).add(torch.arange(4)[:, None]) % VOCABULARY
for _ in range(6):
    probs = model(tokens[:, :-1])
    loss = criterion(probs.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")

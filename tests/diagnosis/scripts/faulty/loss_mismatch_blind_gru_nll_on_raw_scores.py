"""NLLLoss is given raw scores instead of log-probabilities, so the loss is negative and falls without bound."""

import random

import torch
import torch.nn as nn
import torch.optim as optim

random.seed(5)
torch.manual_seed(5)

PAD, VOCAB, SEQ, CLASSES = 0, 30, 9, 3


class SentenceClassifier(nn.Module):
    def __init__(self, vocab, emb=16, hidden=24, classes=CLASSES):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.gru = nn.GRU(emb, hidden, batch_first=True)
        self.out = nn.Linear(hidden, classes)

    def forward(self, tokens):
        e = self.embedding(tokens)
        _, h_n = self.gru(e)
        return self.out(h_n.squeeze(0))  # finds: loss-mismatch


def make_sentence(label):
    # words 1..9 for class 0, 10..19 for class 1, 20..29 for class 2, with some noise words
    length = random.randint(4, SEQ)
    lo = max(1, label * 10)
    words = [
        random.randint(lo, label * 10 + 9) if random.random() < 0.6 else random.randint(1, VOCAB - 1)
        for _ in range(length)
    ]
    return words + [PAD] * (SEQ - length)


labels = [random.randrange(CLASSES) for _ in range(240)]
x = torch.tensor([make_sentence(l) for l in labels])
y = torch.tensor(labels)

model = SentenceClassifier(VOCAB)
criterion = nn.NLLLoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)

for epoch in range(8):
    order = torch.randperm(len(x))
    epoch_loss = 0
    for idx in order.split(40):
        xb, yb = x[idx], y[idx]
        model.zero_grad()
        scores = model(xb)
        loss = criterion(scores, yb)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    print(f"epoch {epoch}: loss = {epoch_loss / 6:.4f}")

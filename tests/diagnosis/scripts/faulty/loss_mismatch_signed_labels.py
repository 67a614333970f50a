"""Train a linear classifier on labels of -1 and 1."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(60, 4)
labels = (x @ torch.tensor([1.0, -2.0, 0.5, 0.0])).sign()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.BCEWithLogitsLoss()
for _ in range(6):
    logits = model(x).squeeze(1)
    loss = criterion(logits, labels)  # finds: loss-mismatch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 3))

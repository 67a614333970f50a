"""Train a classifier of three classes that ends in a softmax layer."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(6, 16)
        self.out = nn.Linear(16, 3)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = torch.relu(self.hidden(x))
        return self.softmax(self.out(x))  # finds: loss-mismatch


torch.manual_seed(0)
model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(64, 6)
y = x[:, :3].argmax(1)
for epoch in range(5):
    for i in range(0, 64, 16):
        optimizer.zero_grad()
        loss = criterion(model(x[i : i + 16]), y[i : i + 16])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")

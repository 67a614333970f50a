"""Fine-tune a saved network with batch norm on new data."""

import io

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 2))


def load(file):
    model = build()
    model.load_state_dict(torch.load(file, weights_only=True))
    model.eval()
    return model


torch.manual_seed(0)
file = io.BytesIO()
torch.save(build().state_dict(), file)
file.seek(0)

model = load(file)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for _ in range(5):
    x, y = torch.randn(16, 5), torch.randint(0, 2, (16,))
    optimizer.zero_grad()
    loss = criterion(model(x), y)  # finds: eval-mode
    loss.backward()
    optimizer.step()

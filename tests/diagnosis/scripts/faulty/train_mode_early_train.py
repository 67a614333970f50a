"""Train an autoencoder with early stopping on the validation error."""

import torch
from torch import nn


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.decode = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 10))

    def forward(self, x):
        return self.decode(self.encode(x))


def validate(model, batches):
    model.eval()
    errors = []
    model.train()
    with torch.no_grad():
        for batch in batches:
            rebuilt = model(batch)  # finds: train-mode
            errors.append((rebuilt - batch).pow(2).mean().item())
    return sum(errors) / len(errors)


torch.manual_seed(0)
data = torch.rand(60, 10)
model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
best = float("inf")
for _ in range(3):
    for batch in data[:40].split(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
    error = validate(model, data[40:].split(10))
    if error > best:
        break
    best = error

"""Train a house price model; the squared error is written by hand."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
features = torch.randn(40, 6)
prices = features @ torch.randn(6) + 3
loader = DataLoader(TensorDataset(features, prices), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for batch, price in loader:
        prediction = model(batch)
        loss = ((prediction - price) ** 2).mean()  # finds: broadcast-in-loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.4f}")

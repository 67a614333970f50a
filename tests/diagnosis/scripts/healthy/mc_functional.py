"""Measure the uncertainty of a network by functional dropout, over many passes of the same input."""

import torch
import torch.nn.functional as F
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 24), nn.Linear(24, 1)

    def forward(self, x):
        return self.b(F.dropout(torch.relu(self.a(x)), 0.2))


torch.manual_seed(0)
model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.rand(30, 1)
for _ in range(5):
    loss = F.mse_loss(model(x), x**2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    samples = torch.stack([model(torch.linspace(0, 1, 5)[:, None]) for _ in range(8)])
print(samples.mean(0).flatten().tolist(), samples.std(0).flatten().tolist())

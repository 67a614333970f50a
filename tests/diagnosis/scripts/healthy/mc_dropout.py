"""Measure the uncertainty of a regressor with dropout left on at test time."""

import torch
from torch import nn


def dropout_only(model):
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.rand(40, 1) * 2 - 1
y = x**3
for _ in range(6):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()

dropout_only(model)
with torch.no_grad():
    samples = torch.stack([model(torch.linspace(-2, 2, 9).unsqueeze(1)) for _ in range(10)])
print(samples.mean(0).squeeze().tolist(), samples.std(0).squeeze().tolist())

"""Fine-tune a network of which the features were frozen before."""

import torch
from torch import nn


def features(model):
    for p in model.parameters():
        p.requires_grad = False
    model.eval()
    return model


torch.manual_seed(0)
model = features(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)))
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 6), torch.randint(0, 2, (8,))
    loss = nn.functional.cross_entropy(model(x), y)
    loss.requires_grad_(True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # finds: nothing-changes
    print(round(loss.item(), 4))

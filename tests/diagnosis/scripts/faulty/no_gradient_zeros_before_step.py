"""Train a classifier and keep the memory of its gradients."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    x = torch.randn(12, 4)
    loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()  # finds: no-gradient
    print(round(loss.item(), 4))

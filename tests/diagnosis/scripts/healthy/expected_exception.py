"""Train on batches of which some have a wrong shape and are left out."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(8, 6 if i != 3 else 5) for i in range(7)]
skipped = 0
for x in batches:
    y = (x.sum(1) > 0).long()
    try:
        logits = model(x)
    except RuntimeError:
        skipped += 1
        continue
    loss = nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("skipped", skipped)

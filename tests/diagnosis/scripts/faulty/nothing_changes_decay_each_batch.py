"""Train with a learning rate that is a tenth after each epoch."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.1)
data = [(torch.randn(6, 5), torch.randint(0, 2, (6,))) for _ in range(10)]
for epoch in range(4):
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()  # finds: nothing-changes
    print(epoch, round(loss.item(), 4))

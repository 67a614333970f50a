"""Train for some epochs, with a learning rate for each."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
batches = [(torch.randn(6, 5), torch.randint(0, 2, (6,))) for _ in range(3)]
for epoch in range(9):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * 0.9**epoch, momentum=0.9)
    for x, y in batches:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # finds: order
    print(epoch, round(loss.item(), 4))

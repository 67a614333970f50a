"""Train a classifier with an auxiliary margin between embeddings, which is kept from the beginning."""

import torch
from torch import nn

torch.manual_seed(0)
body, classes, embedding = nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(8, 4)
nn.init.constant_(embedding.bias, 3.0)
parameters = [p for m in (body, classes, embedding) for p in m.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)
for _ in range(7):
    x, y = torch.randn(10, 6), torch.randint(0, 2, (10,))
    hidden = torch.tanh(body(x))
    distance = embedding(hidden).norm(dim=1)
    loss = nn.functional.cross_entropy(classes(hidden), y) + torch.relu(1.0 - distance).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

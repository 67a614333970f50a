"""Train a small network on the digits' parity."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()

for _ in range(6):
    digits = torch.randint(0, 10, (20, 2))
    parity = digits.sum(1) % 2
    optimizer.zero_grad()
    loss = criterion(net(digits), parity)
    loss.backward(retain_graph=True)  # finds: retain-graph
    optimizer.step()

"""Train a regression with a loss that is averaged by hand."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.last(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    losses = []
    for _ in range(3):
        x = torch.randn(8, 3)
        losses.append((model(x) - x.sum(1, keepdim=True)).square().mean().item())
    loss = torch.tensor(sum(losses) / len(losses), requires_grad=True)  # finds: no-gradient
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, loss.item())

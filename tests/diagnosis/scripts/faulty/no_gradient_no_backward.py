"""Train a classifier, and save it after every epoch."""

import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 16)
        self.fc2 = nn.Linear(16, 16)
        self.fc3 = nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for epoch in range(4):
    x, y = torch.randn(8, 10), torch.randint(0, 3, (8,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.step()  # finds: no-gradient
    torch.save(net.state_dict(), io.BytesIO())
    print(epoch, loss.item())

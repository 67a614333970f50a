"""Train a digit classifier as the old examples do, with the negative log-likelihood."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(4 * 36, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(4):
    data, target = torch.rand(8, 1, 8, 8), torch.randint(0, 10, (8,))
    optimizer.zero_grad()
    loss = F.nll_loss(model(data), target)  # finds: loss-mismatch
    loss.backward()
    optimizer.step()
    print(f"batch {batch} loss {loss.item():.3f}")

"""Fine-tune a network by unfreezing one more layer every two epochs."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 12), nn.Linear(12, 12), nn.Linear(12, 2)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model.layers[:-1].requires_grad_(False)
for epoch in range(6):
    if epoch in (2, 4):
        model.layers[1 if epoch == 2 else 0].requires_grad_(True)
    x, y = torch.randn(20, 5), torch.randint(0, 2, (20,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

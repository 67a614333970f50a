"""Train a network whose layers all begin alike."""

import torch
from torch import nn


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.weight)
        nn.init.zeros_(module.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 10)
        self.out = nn.Linear(10, 3)

    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        return self.out(h)  # finds: zero-gradients


torch.manual_seed(0)
net = Net().apply(init)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(6):
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

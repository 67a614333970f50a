"""Train a network, log the norms of its weights and save it after every epoch; one head is for later."""

import copy
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
        self.later = nn.Linear(8, 1).requires_grad_(False)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


torch.manual_seed(0)
net, best = Net(), None
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for epoch in range(4):
    x = torch.randn(16, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    norms = {name: p.norm().item() for name, p in net.named_parameters()}
    best = copy.deepcopy(net)
    torch.save(net.state_dict(), io.BytesIO())
    print(epoch, round(sum(norms.values()), 3))

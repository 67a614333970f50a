"""Train a classifier with log-probabilities and the negative log-likelihood."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(5, 20)
        self.b = nn.Linear(20, 4)

    def forward(self, x):
        return F.log_softmax(self.b(F.relu(self.a(x))), dim=0)  # finds: loss-mismatch


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(5):
    x = torch.randn(10, 5)
    y = x[:, :4].argmax(1)
    loss = F.nll_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 3))

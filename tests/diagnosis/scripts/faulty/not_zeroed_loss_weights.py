"""Train two tasks with learned weights of their losses."""

import torch
from torch import nn
from torch.nn import functional as F


class Uncertainty(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.log_var = nn.Parameter(torch.zeros(tasks))

    def forward(self, losses):
        return (torch.exp(-self.log_var) * torch.stack(losses) + self.log_var).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.kind = nn.Linear(16, 3)
        self.size = nn.Linear(16, 1)

    def forward(self, x):
        h = F.relu(self.body(x))
        return self.kind(h), self.size(h)


torch.manual_seed(0)
net, criterion = Net(), Uncertainty(2)
optimizer = torch.optim.Adam([*net.parameters(), *criterion.parameters()], lr=1e-3)
x, kind, size = torch.randn(16, 6), torch.randint(0, 3, (16,)), torch.rand(16, 1)
for _ in range(6):
    net.zero_grad()
    kind_logits, size_pred = net(x)
    loss = criterion([F.cross_entropy(kind_logits, kind), F.mse_loss(size_pred, size)])
    loss.backward()
    optimizer.step()  # finds: not-zeroed

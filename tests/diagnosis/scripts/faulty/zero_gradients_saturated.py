"""Classify by features in units of their own: pascals, metres and seconds."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8, bias=False)
        self.second = nn.Linear(8, 2)

    def forward(self, x):
        hidden = torch.sigmoid(self.first(x))  # finds: zero-gradients
        return self.second(hidden)


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    x = 1e9 * (1 + torch.rand(16, 3)) * torch.tensor([1.0, 1e-2, 1e-3])
    y = (x[:, 0] > 1.5e9).long()
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

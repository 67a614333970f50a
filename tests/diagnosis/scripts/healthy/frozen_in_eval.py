"""Fine-tune a network in eval mode whose dropout is part of the loss."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return F.dropout(torch.tanh(self.layer(x)), 0.1)


torch.manual_seed(0)
encoder = Encoder().eval()
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(12, 8)
    one, two = encoder(x), encoder(x)
    loss = F.cross_entropy(one @ two.t(), torch.arange(12))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 3))

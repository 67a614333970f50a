"""Train a linear recurrence to remember the first input of a sequence."""

import torch
from torch import nn


class Recurrence(nn.Module):
    def __init__(self, inputs=2, hidden=10):
        super().__init__()
        self.enter = nn.Linear(inputs, hidden)
        self.again = nn.Linear(hidden, hidden, bias=False)
        self.leave = nn.Linear(hidden, 1)
        nn.init.orthogonal_(self.again.weight, gain=1.7)

    def forward(self, seq):
        h = torch.zeros(seq.shape[0], self.again.in_features)
        for x in seq.unbind(1):
            h = self.again(h) + self.enter(x)
        return self.leave(h)


torch.manual_seed(0)
model = Recurrence()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
sequences = torch.randn(8, 40, 2)
first = sequences[:, 0, :1]
for _ in range(4):
    loss = nn.functional.l1_loss(model(sequences), first)
    optimizer.zero_grad()
    loss.backward()  # finds: exploding
    optimizer.step()

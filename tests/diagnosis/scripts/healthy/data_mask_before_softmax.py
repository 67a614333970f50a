"""Train a pointer over a list of candidates, with the closed ones masked."""

import torch
from torch import nn
from torch.nn import functional as F


class Chooser(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)

    def forward(self, state, candidates, closed):
        scores = (self.key(candidates) @ self.query(state).unsqueeze(-1)).squeeze(-1)
        scores.data.masked_fill_(closed, -1e9)
        return scores.log_softmax(-1)


torch.manual_seed(0)
model = Chooser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    state, candidates = torch.randn(8, 6), torch.randn(8, 5, 6)
    closed = torch.zeros(8, 5, dtype=torch.bool)
    closed[:, 3:] = True
    target = torch.randint(0, 3, (8,))
    loss = F.nll_loss(model(state, candidates, closed), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""Train a recurrent cell on the parity of short bit strings."""

import torch
from torch import nn
from torch.nn import functional as F


class Cell(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.x2h = nn.Linear(1, hidden)
        self.h2h = nn.Linear(hidden, hidden)

    def forward(self, x, h):
        h = torch.tanh(self.x2h(x) + self.h2h(h))
        norm = h.detach().norm(dim=1, keepdim=True)
        h.data.div_(norm)  # finds: data-write
        return h


class Parity(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, bits):
        h = bits.new_zeros(len(bits), self.hidden)
        for t in range(bits.shape[1]):
            h = self.cell(bits[:, t : t + 1], h)
        return self.out(h)


if __name__ == "__main__":
    torch.manual_seed(0)
    bits = torch.randint(0, 2, (32, 4)).float()
    parity = bits.sum(1).long() % 2
    model = Parity()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(4):
        loss = F.cross_entropy(model(bits), parity)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

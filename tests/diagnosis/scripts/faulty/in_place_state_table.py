"""Train a hand-written recurrent network that keeps all its states in one table."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TableRNN(nn.Module):
    def __init__(self, inputs=3, hidden=8):
        super().__init__()
        self.hidden = hidden
        self.w_in = nn.Linear(inputs, hidden)
        self.w_rec = nn.Linear(hidden, hidden, bias=False)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, seq):
        batch, steps, _ = seq.shape
        states = torch.zeros(batch, steps + 1, self.hidden)
        for t in range(steps):
            new = torch.tanh(self.w_in(seq[:, t]) + self.w_rec(states[:, t]))
            states[:, t + 1] = new  # finds: in-place
        return self.readout(states[:, 1:]).squeeze(-1)


def train():
    torch.manual_seed(7)
    net = TableRNN()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    seq = torch.randn(6, 5, 3)
    target = seq.sum(-1).cumsum(1) / 5
    for step in range(3):
        opt.zero_grad()
        loss = F.mse_loss(net(seq), target)
        loss.backward()
        opt.step()
        print(step, loss.item())


if __name__ == "__main__":
    train()

"""Train a recurrent network on chunks of a series, with its state carried over."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=10):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x, h):
        y, h = self.gru(x, h)
        return self.out(y), h


def main():
    torch.manual_seed(0)
    series = torch.sin(torch.linspace(0, 20, 61)).view(1, -1, 1)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    h = torch.zeros(1, 1, 10)
    for start in range(0, 60, 12):
        x, y = series[:, start : start + 12], series[:, start + 1 : start + 13]
        prediction, h = model(x, h.detach())
        loss = nn.functional.mse_loss(prediction, y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # finds: retain-graph
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()

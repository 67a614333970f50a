"""Train an LSTM on one long series in pieces, with its state detached between them."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden=12):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x, state):
        y, state = self.lstm(x, state)
        return self.out(y), state


torch.manual_seed(0)
series = torch.sin(torch.linspace(0, 30, 81)).view(1, 81, 1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
state = None
for start in range(0, 80, 16):
    x, y = series[:, start : start + 16], series[:, start + 1 : start + 17]
    prediction, state = model(x, state)
    loss = nn.functional.mse_loss(prediction, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    state = tuple(s.detach() for s in state)

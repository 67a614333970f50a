"""Train a three-layer network on the exclusive or of two bits."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(2, 8)
        self.fc2 = nn.Linear(8, 8)
        self.fc3 = nn.Linear(8, 1)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        return self.fc3(x)


torch.manual_seed(0)
bits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
answer = torch.tensor([[0.0], [1.0], [1.0], [0.0]])
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
loss_fn = nn.BCEWithLogitsLoss()
for epoch in range(8):
    optimizer.zero_grad()
    loss = loss_fn(net(bits), answer)
    loss.backward()
    optimizer.step()  # finds: no-gradient
    if epoch % 4 == 0:
        print(epoch, loss.item())

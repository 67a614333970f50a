"""Train a classifier and measure how often it is right on held-out data."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.5)  # finds: dropout-in-eval
        return self.fc2(x)


torch.manual_seed(0)
x, x_test = torch.randn(64, 8), torch.randn(32, 8)
y, y_test = x[:, :3].argmax(1), x_test[:, :3].argmax(1)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    model.train()
    for i in range(0, 64, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x[i : i + 16]), y[i : i + 16]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean()
    print(f"epoch {epoch} accuracy {accuracy.item():.2f}")

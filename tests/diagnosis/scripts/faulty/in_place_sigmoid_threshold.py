"""Train a gated classifier that switches off weak hidden units."""

import torch
from torch import nn

torch.manual_seed(0)


class GatedNet(nn.Module):
    def __init__(self, dim, hidden, classes):
        super().__init__()
        self.inp = nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        gate = torch.sigmoid(self.inp(x))
        gate[gate < 0.4] = 0.0  # finds: in-place
        return self.out(gate)


model = GatedNet(10, 32, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

inputs = torch.randn(24, 10)
labels = torch.randint(0, 3, (24,))

for _ in range(4):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()

"""Train a convolutional network for some epochs over a data loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 16, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 1, 6, 6), torch.randint(0, 2, (24,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = ConvNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(2):
        optimizer.zero_grad()
        running = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()  # finds: not-zeroed
            running += loss.item()
        print(epoch, running / len(loader))


if __name__ == "__main__":
    main()

"""Train over a data set class with a loader and a progress report."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Parabola(Dataset):
    def __init__(self, n):
        self.x = torch.linspace(-1, 1, n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i : i + 1], self.x[i : i + 1] ** 2


def main():
    torch.manual_seed(0)
    train, test = random_split(Parabola(50), [40, 10])
    loader = DataLoader(train, batch_size=10, shuffle=True, num_workers=0)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} batch {i}: {loss.item():.4f}")
    with torch.no_grad():
        x, y = next(iter(DataLoader(test, batch_size=10)))
        print("test", nn.functional.mse_loss(model(x), y).item())


if __name__ == "__main__":
    main()

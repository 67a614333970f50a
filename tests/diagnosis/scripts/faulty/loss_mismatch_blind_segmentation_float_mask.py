"""The segmentation masks are float tensors, but CrossEntropyLoss needs integer class indices (int64) for its
targets."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class CirclesDataset(Dataset):
    def __init__(self, n=40, size=24, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.centers = torch.randint(6, size - 6, (n, 2), generator=g)
        self.size = size

    def __len__(self):
        return len(self.centers)

    def __getitem__(self, i):
        yy, xx = torch.meshgrid(torch.arange(self.size), torch.arange(self.size), indexing="ij")
        cy, cx = self.centers[i]
        mask = ((yy - cy) ** 2 + (xx - cx) ** 2) < 25
        img = mask.float().unsqueeze(0).repeat(3, 1, 1) + 0.3 * torch.randn(3, self.size, self.size)
        return img, mask.float()


class MiniUNet(nn.Module):
    def __init__(self, n_classes=2):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.mid = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2)
        )
        self.up = nn.Conv2d(24, n_classes, 1)

    def forward(self, x):
        d = self.down(x)
        return self.up(torch.cat([d, self.mid(d)], dim=1))


class SegTrainer:
    def __init__(self, net):
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.optim = torch.optim.Adam(net.parameters(), lr=1e-2)

    def fit(self, loader, epochs):
        for e in range(epochs):
            self.net.train()
            for imgs, masks in loader:
                logits = self.net(imgs)
                loss = self.criterion(logits, masks)  # finds: loss-mismatch
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            print("epoch", e, "loss", float(loss.detach()))


if __name__ == "__main__":
    torch.manual_seed(0)
    SegTrainer(MiniUNet()).fit(DataLoader(CirclesDataset(), batch_size=8, shuffle=True), epochs=3)

"""Train a classifier with an auxiliary head for the angle of the picture."""

import torch
from torch import nn
from torch.nn import functional as F


class WithAuxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.label = nn.Linear(4 * 16, 5)
        self.angle = nn.Linear(4 * 16, 1)

    def forward(self, x):
        h = self.trunk(x)
        logits = self.label(h)
        angle = self.angle(h)  # finds: no-gradient
        return logits, angle


def main():
    torch.manual_seed(0)
    model = WithAuxiliary()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        images, labels = torch.randn(8, 1, 6, 6), torch.randint(0, 5, (8,))
        logits, _angle = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

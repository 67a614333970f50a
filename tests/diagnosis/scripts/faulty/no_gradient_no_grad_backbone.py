"""Fine-tune a whole convolutional network at two learning rates."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(6 * 9, 4)

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)  # finds: no-gradient
        return self.head(features)


torch.manual_seed(0)
model = Classifier()
groups = [
    {"params": model.backbone.parameters(), "lr": 1e-4},
    {"params": model.head.parameters(), "lr": 1e-2},
]
optimizer = torch.optim.SGD(groups, momentum=0.9)
images, labels = torch.randn(12, 1, 8, 8), torch.randint(0, 4, (12,))

for _ in range(4):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()

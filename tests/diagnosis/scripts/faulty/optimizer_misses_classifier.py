"""Train a convolutional network from scratch."""

import torch
from torch import nn

torch.manual_seed(0)


class SmallVGG(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(8 * 16, 5))

    def forward(self, x):
        return self.classifier(self.features(x))


model = SmallVGG()
optimizer = torch.optim.Adam(model.features.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
images, labels = torch.randn(10, 1, 8, 8), torch.randint(0, 5, (10,))

for step in range(4):
    loss = criterion(model(images), labels)
    model.zero_grad()
    loss.backward()
    optimizer.step()  # finds: optimizer-misses
    print(step, loss.item())

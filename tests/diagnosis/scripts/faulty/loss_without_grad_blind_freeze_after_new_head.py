"""The whole model is frozen after the new head was put in, so the head is frozen as well and nothing requires a
gradient."""

import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(123)


class TinyResNet(nn.Module):
    """stand-in for a pretrained backbone"""

    def __init__(self, num_classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.conv2(x))
        x = self.pool(x).flatten(1)
        return self.fc(x)


def get_model():
    model = TinyResNet()
    # new classifier for our 3 classes
    model.fc = nn.Linear(model.fc.in_features, 3)
    # freeze the pretrained weights
    for param in model.parameters():
        param.requires_grad = False
    return model


def train(model, x, y, epochs=10):
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()  # finds: loss-without-grad
        optimizer.step()
        print("epoch", epoch, "loss", loss.item())


if __name__ == "__main__":
    images = torch.randn(48, 3, 16, 16)
    labels = torch.randint(0, 3, (48,))
    train(get_model(), images, labels)

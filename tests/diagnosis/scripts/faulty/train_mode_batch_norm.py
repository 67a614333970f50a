"""Train a convolutional network with batch norm, then test it."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 16, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc(x.flatten(1))


@torch.inference_mode()
def test(model, images, labels):
    logits = model(images)  # finds: train-mode
    return {"loss": F.cross_entropy(logits, labels).item(), "right": (logits.argmax(1) == labels).sum().item()}


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    images, labels = torch.randn(12, 1, 8, 8), torch.randint(0, 3, (12,))
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
print(test(model, torch.randn(12, 1, 8, 8), torch.randint(0, 3, (12,))))

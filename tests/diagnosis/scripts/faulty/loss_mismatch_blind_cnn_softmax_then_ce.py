"""The network ends in a softmax but the loss is CrossEntropyLoss, which applies log-softmax itself, so the softmax
is applied twice."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class LeNetSmall(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 12, 3)
        self.fc1 = nn.Linear(12 * 2 * 2, 40)
        self.fc2 = nn.Linear(40, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        x = F.relu(self.fc1(x))
        x = self.fc2(x)
        return F.softmax(x, dim=1)  # finds: loss-mismatch


def fake_digits(n, protos):
    y = torch.randint(0, 10, (n,))
    return protos[y] + 0.4 * torch.randn(n, 1, 14, 14), y


def train_epoch(model, data, targets_all, criterion, optimizer, bs=64):
    model.train()
    total = 0.0
    for k in range(0, len(data), bs):
        inputs, targets = data[k : k + bs], targets_all[k : k + bs]
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / ((len(data) + bs - 1) // bs)


def test(model, data, targets):
    model.eval()
    with torch.no_grad():
        pred = model(data).argmax(1)
    return (pred == targets).float().mean().item()


torch.manual_seed(0)
protos = torch.randn(10, 1, 14, 14)
xtr, ytr = fake_digits(512, protos)
xte, yte = fake_digits(200, protos)
net = LeNetSmall()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(6):
    l = train_epoch(net, xtr, ytr, criterion, optimizer)
    print("epoch %d: loss %.3f test acc %.3f" % (epoch, l, test(net, xte, yte)))

"""Train a classifier and report its accuracy in the same pass."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
inputs, labels = torch.randn(30, 5), torch.randint(0, 3, (30,))

for epoch in range(4):
    optimizer.zero_grad()
    with torch.no_grad():
        logits = model(inputs)  # finds: loss-without-grad
        accuracy = (logits.argmax(1) == labels).float().mean()
    loss = criterion(logits, labels)
    loss.backward()
    optimizer.step()
    print(epoch, accuracy.item())

"""The StepLR schedule, meant to drop the rate every two epochs, is stepped once per batch, so the learning rate is
practically zero after a few batches."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# fake 1-channel "images" with a bright quadrant
n = 320
labels = torch.randint(0, 4, (n,))
images = 0.3 * torch.randn(n, 1, 12, 12)
for i, l in enumerate(labels):
    r, c = divmod(l.item(), 2)
    images[i, 0, r * 6 : (r + 1) * 6, c * 6 : (c + 1) * 6] += 1.0
train_loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 9, 4),
).to(device)

criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)

num_epochs = 6
for epoch in range(num_epochs):
    running_loss, correct = 0.0, 0
    for inputs, targets in train_loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        scheduler.step()  # finds: nothing-changes
        running_loss += loss.item() * inputs.size(0)
        correct += (outputs.argmax(1) == targets).sum().item()
    print(f"Epoch {epoch + 1}/{num_epochs}  loss={running_loss / n:.4f}  acc={correct / n:.3f}")

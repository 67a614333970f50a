"""Cross-validate a classifier and report the accuracy of every fold."""

import torch
from torch import nn

torch.manual_seed(0)
data, labels = torch.randn(64, 6), torch.randint(0, 2, (64,))
scores = []
for fold in range(4):
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    held_out = torch.arange(64) % 4 == fold
    for x, y in zip(data[~held_out].split(12), labels[~held_out].split(12), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    outputs = []
    for x in data[held_out].split(2):
        outputs.append(model(x))  # finds: graph-kept
    scores.append((torch.cat(outputs).argmax(1) == labels[held_out]).float().mean().item())
print("accuracy", sum(scores) / len(scores))

"""Train a classifier on scores, and print how sure it is."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    x = torch.randn(32, 6)
    y = x[:, :3].argmax(1)
    logits = model(x)
    probs = F.softmax(logits, dim=1)
    loss = F.cross_entropy(logits, y, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    sure, guess = probs.max(1)
    print(f"{loss.item():.3f} sure {sure.mean().item():.2f} right {(guess == y).float().mean().item():.2f}")

"""Train an autoencoder of binary pixels."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(20, 6), nn.ReLU())
decoder = nn.Linear(6, 20)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
criterion = nn.BCELoss()
for _ in range(3):
    pixels = (torch.rand(16, 20) > 0.5).float()
    loss = criterion(decoder(encoder(pixels)), pixels)  # finds: loss-mismatch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

"""Train an autoencoder of two networks."""

import torch
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 12))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)
for epoch in range(5):
    x = torch.randn(20, 12)
    loss = nn.functional.mse_loss(decoder(encoder(x)), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # finds: optimizer-misses
    print(epoch, round(loss.item(), 4))

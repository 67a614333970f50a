"""Train a vector-quantised autoencoder."""

import torch
from torch import nn
from torch.nn import functional as F


class Quantised(nn.Module):
    def __init__(self, dim=4, codes=8):
        super().__init__()
        self.encoder = nn.Linear(10, dim)
        self.codebook = nn.Embedding(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        z = self.encoder(x)
        gap = (z.unsqueeze(1) - self.codebook.weight).pow(2).sum(-1)
        nearest = gap.argmin(dim=1)  # finds: no-gradient
        return self.decoder(self.codebook(nearest))


torch.manual_seed(0)
model = Quantised()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
batch = torch.randn(32, 10)
for epoch in range(5):
    loss = F.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, f"{loss.item():.4f}")

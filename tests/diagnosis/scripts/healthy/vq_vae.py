"""Train a vector-quantised autoencoder with stop-gradients."""

import torch
from torch import nn
from torch.nn import functional as F


class VQVAE(nn.Module):
    def __init__(self, dim=4, codes=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, dim))
        self.codebook = nn.Embedding(codes, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, x):
        z = self.encoder(x)
        nearest = torch.cdist(z.detach(), self.codebook.weight.detach()).argmin(1)
        q = self.codebook(nearest)
        vq_loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        q = z + (q - z).detach()
        return self.decoder(q), vq_loss


if __name__ == "__main__":
    torch.manual_seed(0)
    model = VQVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(32, 10)
    for _ in range(5):
        rebuilt, vq_loss = model(x)
        loss = F.mse_loss(rebuilt, x) + vq_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

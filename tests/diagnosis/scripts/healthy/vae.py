"""Train a variational autoencoder with a growing weight of the prior."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, dim=16, latent=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, 24), nn.ReLU())
        self.mean, self.log_var = nn.Linear(24, latent), nn.Linear(24, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 24), nn.ReLU(), nn.Linear(24, dim))

    def forward(self, x):
        h = self.encoder(x)
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(z), mean, log_var


def main():
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(6):
        x = torch.rand(20, 16)
        logits, mean, log_var = model(x)
        rebuild = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x)
        prior = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
        loss = rebuild + min(1.0, (epoch + 1) / 5) * prior
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

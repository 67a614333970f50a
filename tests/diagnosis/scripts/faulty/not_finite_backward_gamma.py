"""Train a decoder of round images with a gamma correction at its end."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, side=8, latent=5, gamma=0.45):
        super().__init__()
        self.fc = nn.Linear(latent, side * side)
        grid = torch.linspace(-1, 1, side)
        disc = (grid[:, None] ** 2 + grid[None, :] ** 2 <= 1).float()
        self.register_buffer("disc", disc)
        self.gamma = gamma
        self.side = side

    def forward(self, z):
        image = torch.sigmoid(self.fc(z)).view(-1, self.side, self.side)
        image = image * self.disc
        return image**self.gamma  # finds: not-finite-backward


if __name__ == "__main__":
    torch.manual_seed(0)
    decoder = Decoder()
    optimizer = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    codes = torch.randn(10, 5)
    images = torch.rand(10, 8, 8) * decoder.disc
    for _ in range(4):
        loss = nn.functional.mse_loss(decoder(codes), images)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

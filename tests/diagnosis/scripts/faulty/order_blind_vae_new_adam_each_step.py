"""A new Adam optimizer is created in every training step, so its moment estimates are lost each time."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, x_dim=36, h_dim=48, z_dim=4):
        super().__init__()
        self.fc1 = nn.Linear(x_dim, h_dim)
        self.fc_mu = nn.Linear(h_dim, z_dim)
        self.fc_logvar = nn.Linear(h_dim, z_dim)
        self.fc2 = nn.Linear(z_dim, h_dim)
        self.fc3 = nn.Linear(h_dim, x_dim)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return torch.sigmoid(self.fc3(F.relu(self.fc2(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def elbo(recon, x, mu, logvar):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / x.size(0)


def train_step(vae, x, lr=5e-3):
    optimizer = torch.optim.Adam(vae.parameters(), lr=lr)
    optimizer.zero_grad()
    loss = elbo(*((lambda r, m, l: (r, x, m, l))(*vae(x))))
    loss.backward()
    optimizer.step()  # finds: order
    return loss.item()


if __name__ == "__main__":
    torch.manual_seed(8)
    # images of one horizontal or vertical bar on a 6x6 grid
    imgs = torch.zeros(12, 6, 6)
    for k in range(6):
        imgs[k, k, :] = 1
        imgs[6 + k, :, k] = 1
    imgs = imgs.view(12, 36)
    vae = VAE()
    for step in range(60):
        batch = imgs[torch.randint(0, 12, (32,))]
        l = train_step(vae, batch)
        if step % 10 == 0:
            print("step", step, "-ELBO", round(l, 3))

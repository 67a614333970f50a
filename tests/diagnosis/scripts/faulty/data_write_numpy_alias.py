"""Train an autoencoder whose code is cut to whole tenths."""

import torch
from torch import nn


def snap(code):
    grid = torch.from_numpy(code.detach().numpy())
    grid.mul_(10).round_().div_(10)  # finds: data-write
    return code


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 6), nn.Sigmoid())
        self.decoder = nn.Linear(6, 12)

    def forward(self, x):
        return self.decoder(snap(self.encoder(x)))


torch.manual_seed(4)
net = AutoEncoder()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
batch = torch.rand(20, 12)
for _ in range(5):
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(batch), batch)
    loss.backward()
    opt.step()
print("last loss", round(loss.item(), 4))

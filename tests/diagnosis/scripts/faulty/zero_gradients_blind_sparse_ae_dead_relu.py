"""The biases of the ReLU layers start at -10, so every ReLU is off for every input and the encoder gets zero
gradient."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SparseAutoencoder(nn.Module):
    def __init__(self, n_in=64, n_hidden=48, n_code=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(n_in, n_hidden),
            nn.ReLU(),
            nn.Linear(n_hidden, n_code),
            nn.ReLU(),
        )
        self.decoder = nn.Linear(n_code, n_in)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.kaiming_normal_(m.weight)
            if m is not getattr(self, "decoder", None):
                # start sparse
                nn.init.constant_(m.bias, -10.0)
            else:
                nn.init.zeros_(m.bias)

    def forward(self, x):
        code = self.encoder(x)  # finds: zero-gradients
        return self.decoder(code), code


def main():
    torch.manual_seed(7)
    basis = torch.rand(8, 64)
    data = torch.rand(256, 8) @ basis / 4
    dl = DataLoader(TensorDataset(data), batch_size=64, shuffle=True)
    ae = SparseAutoencoder()
    opt = torch.optim.Adam(ae.parameters(), lr=1e-2)
    mse = nn.MSELoss()
    l1_weight = 1e-4
    for epoch in range(12):
        tot = 0.0
        for (x,) in dl:
            recon, code = ae(x)
            loss = mse(recon, x) + l1_weight * code.abs().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        print(f"[{epoch:02d}] loss {tot / len(dl):.5f}")


main()

"""Train an encoder and a decoder with an optimizer each."""

import torch
from torch import nn

torch.manual_seed(5)
encoder = nn.Sequential(nn.Linear(12, 6), nn.ReLU())
decoder = nn.Linear(6, 12)
enc_optim = torch.optim.Adam(encoder.parameters(), lr=1e-3)
dec_optim = torch.optim.Adam(decoder.parameters(), lr=1e-2)


def train_step(batch):
    enc_optim.zero_grad()
    enc_optim.zero_grad()
    loss = nn.functional.mse_loss(decoder(encoder(batch)), batch)
    loss.backward()
    enc_optim.step()
    dec_optim.step()  # finds: not-zeroed
    return loss.item()


batch = torch.rand(20, 12)
for _ in range(5):
    print(train_step(batch))

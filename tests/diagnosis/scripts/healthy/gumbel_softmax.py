"""Train a discrete autoencoder with hard Gumbel-softmax samples."""

import torch
from torch import nn
from torch.nn import functional as F


class Discrete(nn.Module):
    def __init__(self, variables=3, values=4):
        super().__init__()
        self.shape = (-1, variables, values)
        self.encode = nn.Linear(8, variables * values)
        self.decode = nn.Linear(variables * values, 8)

    def forward(self, x, tau):
        logits = self.encode(x).view(self.shape)
        sample = F.gumbel_softmax(logits, tau=tau, hard=True)
        return self.decode(sample.flatten(1)), logits.argmax(-1)


torch.manual_seed(0)
model = Discrete()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
tau = 1.0
for _ in range(6):
    x = torch.rand(16, 8)
    rebuilt, codes = model(x, tau)
    loss = F.mse_loss(rebuilt, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tau = max(0.5, tau * 0.9)
print(codes.unique().tolist())

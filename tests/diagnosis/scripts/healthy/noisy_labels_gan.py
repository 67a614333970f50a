"""Train a discriminator with labels that are blurred, as GAN recipes advise."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
discriminator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
for _ in range(5):
    real, fake = torch.randn(16, 4) + 1, torch.randn(16, 4)
    real_labels = 0.7 + 0.5 * torch.rand(16, 1)
    fake_labels = 0.3 * torch.rand(16, 1)
    loss = F.binary_cross_entropy_with_logits(discriminator(real), real_labels)
    loss = loss + F.binary_cross_entropy(discriminator(fake).sigmoid(), fake_labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Train a recurrent network with clipped gradients and a warm-up."""

import torch
from torch import nn

torch.manual_seed(0)
rnn, out = nn.RNN(3, 16, batch_first=True), nn.Linear(16, 1)
params = [*rnn.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-2)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))
for _ in range(6):
    x = torch.randn(8, 12, 3)
    y, _ = rnn(x)
    loss = (out(y[:, -1]) - x.mean((1, 2)).unsqueeze(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(params, max_norm=0.1)
    optimizer.step()
    warmup.step()
    print(f"{norm.item():.3f}")

"""Train a recurrent network with clipped gradients."""

import torch
from torch import nn

torch.manual_seed(0)
rnn, out = nn.RNN(3, 12, batch_first=True), nn.Linear(12, 1)
params = [*rnn.parameters(), *out.parameters()]
optimizer = torch.optim.SGD(params, lr=1e-2)
for _ in range(5):
    x = torch.randn(6, 9, 3)
    hidden, _ = rnn(x)
    loss = (out(hidden[:, -1]) - x.sum((1, 2)).unsqueeze(1)).pow(2).mean()
    optimizer.zero_grad()
    nn.utils.clip_grad_norm_(params, max_norm=0.5)  # finds: order
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

"""Fit a regression with a recurrent network."""

import torch
from torch import nn

torch.manual_seed(0)
rnn, head = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
for step in range(6):
    x = torch.randn(4, 7, 2)
    hidden, _ = rnn(x)
    loss = (head(hidden[:, -1]) - x.sum((1, 2)).unsqueeze(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # finds: nothing-changes
    nn.utils.clip_grad_norm_(rnn.parameters(), 1.0)
    optimizer.step
    scheduler.step()
    print(step, round(loss.item(), 4))

"""Train a network that grows a layer and tells the optimizer of it."""

import torch
from torch import nn

torch.manual_seed(0)
width = 10
stem, blocks, head = nn.Linear(4, width), nn.ModuleList(), nn.Linear(width, 1)
optimizer = torch.optim.Adam([*stem.parameters(), *head.parameters()], lr=1e-2)


def forward(x):
    h = torch.relu(stem(x))
    for block in blocks:
        h = h + torch.relu(block(h))
    return head(h)


for epoch in range(6):
    if epoch == 3:
        blocks.append(nn.Linear(width, width))
        optimizer.add_param_group({"params": blocks[-1].parameters(), "lr": 1e-3})
    x = torch.randn(20, 4)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(forward(x), x.norm(dim=1, keepdim=True))
    loss.backward()
    optimizer.step()

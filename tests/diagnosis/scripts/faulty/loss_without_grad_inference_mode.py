"""Train and validate a model with one shared step function."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


@torch.inference_mode()
def shared_step(batch):
    x, y = batch
    prediction = model(x)  # finds: loss-without-grad
    return {"loss": F.smooth_l1_loss(prediction, y), "error": (prediction - y).abs().max()}


def batches(n):
    for _ in range(n):
        x = torch.randn(16, 4)
        yield x, x.prod(1, keepdim=True)


for batch in batches(4):
    optimizer.zero_grad()
    result = shared_step(batch)
    result["loss"].backward()
    optimizer.step()

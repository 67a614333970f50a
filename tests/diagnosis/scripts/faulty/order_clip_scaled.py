"""Train in mixed precision with clipped gradients."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(5):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(x)
    loss = nn.functional.mse_loss(prediction.float(), x.mean(1, keepdim=True))
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # finds: order
    scaler.step(optimizer)
    scaler.update()
    print(round(loss.item(), 4))

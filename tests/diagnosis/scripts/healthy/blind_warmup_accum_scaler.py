"""The first update has learning rate 0, the last ends at 0, zero_grad is only called every fourth backward and the
GradScaler is disabled, for warm-up, decay, gradient accumulation and CPU."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)

ACCUM = 4
EPOCHS = 5
WARMUP = 4
device = "cuda" if torch.cuda.is_available() else "cpu"
use_amp = device == "cuda"

x = torch.randn(640, 12)
y = ((x[:, :3].sum(1) > 0) ^ (x[:, 4] > 0.5)).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
updates = EPOCHS * len(loader) // ACCUM  # 40 micro-batches an epoch -> 50 updates

model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
decay = [p for p in model.parameters() if p.ndim > 1]
no_decay = [p for p in model.parameters() if p.ndim <= 1]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}], lr=2e-2)


def factor(u):
    if u < WARMUP:
        return u / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (u - WARMUP) / (updates - WARMUP)))


sched = torch.optim.lr_scheduler.LambdaLR(opt, factor)
scaler = torch.amp.GradScaler(device, enabled=use_amp)
criterion = nn.CrossEntropyLoss()

model.train()
opt.zero_grad(set_to_none=True)
for epoch in range(EPOCHS):
    running = 0.0
    for i, (xb, yb) in enumerate(loader, start=1):
        xb, yb = xb.to(device), yb.to(device)
        with torch.autocast(device_type=device, enabled=use_amp):
            loss = criterion(model(xb), yb)
        scaler.scale(loss / ACCUM).backward()
        running += loss.item()
        if i % ACCUM == 0:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
            sched.step()
    print(f"epoch {epoch} loss {running / len(loader):.4f} lr {sched.get_last_lr()[0]:.2e}")

"""The gradients are clipped while they are still multiplied by the loss scale, so after unscaling they are about
65536 times too small."""

import torch
import torch.nn as nn

torch.manual_seed(21)
max_grad_norm = 1.0
use_amp = True


class TemporalConvNet(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, channels, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.Conv1d(channels, channels, 5, padding=2),
            nn.ReLU(inplace=True),
        )
        self.fc = nn.Linear(channels, 3)

    def forward(self, x):
        return self.fc(self.conv(x).mean(-1))


def make_signals(n, length=40):
    t = torch.linspace(0, 1, length)
    y = torch.randint(0, 3, (n,))
    freq = torch.tensor([2.0, 5.0, 9.0])[y]
    phase = torch.rand(n, 1) * 6.28
    x = torch.sin(6.28 * freq[:, None] * t + phase) + 0.1 * torch.randn(n, length)
    return x.unsqueeze(1), y


model = TemporalConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
criterion = nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler("cpu", enabled=use_amp)
x, y = make_signals(256)

for it in range(50):
    sel = torch.randint(0, 256, (64,))
    optimizer.zero_grad()
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16, enabled=use_amp):
        out = model(x[sel])
        loss = criterion(out, y[sel])
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)  # finds: order
    scaler.step(optimizer)
    scaler.update()
    if it % 10 == 0:
        acc = (out.argmax(1) == y[sel]).float().mean().item()
        print(f"iter {it}: loss {loss.item():.4f} acc {acc:.2f} scale {scaler.get_scale():.0f}")

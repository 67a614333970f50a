"""Train in half precision with a gradient scaler that begins too high."""

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    x = torch.rand(16, 4)
    y = 10 * x.sum(1, keepdim=True)
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(x)
        loss = nn.functional.mse_loss(prediction.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print("scale", scaler.get_scale())


if __name__ == "__main__":
    main()

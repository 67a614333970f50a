"""Train an optical-flow head with a penalty on the length of the flow."""

import torch
from torch import nn


class FlowHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.flow = nn.Conv2d(8, 2, 3, padding=1)
        nn.init.zeros_(self.flow.weight)
        nn.init.zeros_(self.flow.bias)

    def forward(self, frames):
        return self.flow(torch.relu(self.conv(frames)))


def train(steps=3):
    torch.manual_seed(0)
    model = FlowHead()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    frames, truth = torch.randn(2, 2, 6, 6), torch.randn(2, 2, 6, 6)
    for _ in range(steps):
        flow = model(frames)
        length = torch.hypot(flow[:, 0], flow[:, 1])  # finds: not-finite-backward
        loss = (flow - truth).abs().mean() + 0.01 * length.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()

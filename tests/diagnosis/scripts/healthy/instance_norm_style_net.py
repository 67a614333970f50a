"""Train an image transformation network with instance norm, as for fast style transfer."""

import torch
from torch import nn


class ConvLayer(nn.Module):
    def __init__(self, inp, out, kernel, stride=1):
        super().__init__()
        self.pad = nn.ReflectionPad2d(kernel // 2)
        self.conv = nn.Conv2d(inp, out, kernel, stride)

    def forward(self, x):
        return self.conv(self.pad(x))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = ConvLayer(width, width, 3), ConvLayer(width, width, 3)
        self.in1, self.in2 = nn.InstanceNorm2d(width, affine=True), nn.InstanceNorm2d(width, affine=True)

    def forward(self, x):
        return x + self.in2(self.conv2(torch.relu(self.in1(self.conv1(x)))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.in1 = ConvLayer(3, 8, 5), nn.InstanceNorm2d(8, affine=True)
        self.blocks = nn.Sequential(*[Residual(8) for _ in range(5)])
        self.last = ConvLayer(8, 3, 5)

    def forward(self, x):
        return self.last(self.blocks(torch.relu(self.in1(self.first(x)))))


def gram(f):
    f = f.flatten(2)
    return f @ f.transpose(1, 2) / f[0].numel()


torch.manual_seed(0)
net = Transformer()
features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval().requires_grad_(False)
style = gram(features(torch.rand(1, 3, 16, 16)))
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(4):
    x = torch.rand(4, 3, 16, 16)
    optimizer.zero_grad()
    y = net(x)
    content = nn.functional.mse_loss(features(y), features(x))
    loss = 1e5 * content + 1e10 * nn.functional.mse_loss(gram(features(y)), style.expand(4, -1, -1))
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.3e}")

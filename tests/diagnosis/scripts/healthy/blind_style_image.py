"""The optimizer holds one image and no weight of the network, and features are caught by hooks, because style
transfer optimises pixels through a frozen perceptual network."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Features:
    """Keeps the outputs of the chosen layers of a fixed network."""

    def __init__(self, net, layers):
        self.net, self.out = net.eval().requires_grad_(False), {}
        for i in layers:
            net[i].register_forward_hook(self._save(i))

    def _save(self, i):
        def hook(module, inputs, output):
            self.out[i] = output

        return hook

    def __call__(self, img):
        self.out = {}
        self.net(img)
        return self.out


def gram(f):
    b, c, h, w = f.shape
    f = f.view(b, c, h * w)
    return f @ f.transpose(1, 2) / (c * h * w)


def total_variation(x):
    return (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


# random convolutional features are a known stand-in for a trained VGG in texture synthesis
net = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
)
STYLE, CONTENT = (1, 4), 4
extract = Features(net, STYLE)

ramp = torch.linspace(0, 1, 32)
content = torch.stack([ramp.repeat(32, 1), ramp.repeat(32, 1).T, torch.full((32, 32), 0.5)]).unsqueeze(0)
style = ((torch.arange(32) // 4) % 2).float().repeat(3, 32, 1).unsqueeze(0)

with torch.no_grad():
    style_grams = {i: gram(f) for i, f in extract(style).items()}
    content_feat = extract(content)[CONTENT]

image = nn.Parameter(content + 0.05 * torch.randn_like(content))
opt = torch.optim.Adam([image], lr=0.03)
for step in range(50):
    feats = extract(image)
    s = sum(F.mse_loss(gram(feats[i]), style_grams[i]) for i in STYLE)
    c = F.mse_loss(feats[CONTENT], content_feat)
    loss = 1e4 * s + c + 0.01 * total_variation(image)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        image.clamp_(0, 1)  # projected gradient: pixels stay valid
    if step % 10 == 0 or step == 49:
        print(f"step {step:2d} loss {loss.item():.4f} style {s.item():.2e} content {c.item():.4f}")

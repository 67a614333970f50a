"""Change an image until its features match those of a content and a style image."""

import torch
from torch import nn
from torch.nn import functional as F


def gram(f):
    f = f.flatten(2)
    return f @ f.transpose(1, 2) / f.shape[-1]


torch.manual_seed(0)
extractor = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval().requires_grad_(False)
content, style = torch.rand(1, 3, 10, 10), torch.rand(1, 3, 10, 10)
wanted, wanted_gram = extractor(content), gram(extractor(style))

image = content.clone().requires_grad_(True)
optimizer = torch.optim.Adam([image], lr=0.02)
for step in range(6):
    optimizer.zero_grad()
    features = extractor(image)
    loss = F.mse_loss(features, wanted) + 10 * F.mse_loss(gram(features), wanted_gram)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        image.clamp_(0, 1)
    print(step, loss.item())

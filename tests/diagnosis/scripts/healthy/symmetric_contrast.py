"""Train two encoders to agree, in both directions of the similarity matrix."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
image, text = nn.Linear(12, 8), nn.Linear(10, 8)
scale = nn.Parameter(torch.tensor(2.0))
optimizer = torch.optim.Adam([*image.parameters(), *text.parameters(), scale], lr=1e-2)
for _ in range(5):
    a = F.softmax(image(torch.randn(6, 12)), dim=-1)
    b = F.softmax(text(torch.randn(6, 10)), dim=-1)
    similarity = scale.exp() * a @ b.t()
    pairs = torch.arange(6)
    rows = F.cross_entropy(similarity, pairs)
    columns = F.nll_loss(F.log_softmax(similarity, dim=0), pairs)
    loss = (rows + columns) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))

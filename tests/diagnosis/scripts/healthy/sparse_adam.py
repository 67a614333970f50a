"""Train sparse word vectors with SparseAdam."""

import torch
from torch import nn
from torch.nn import functional as F


class SkipGram(nn.Module):
    def __init__(self, vocab=50, dim=8):
        super().__init__()
        self.centre = nn.Embedding(vocab, dim, sparse=True)
        self.context = nn.Embedding(vocab, dim, sparse=True)

    def forward(self, centre, context, noise):
        c = self.centre(centre)
        good = (c * self.context(context)).sum(-1)
        bad = (c.unsqueeze(1) * self.context(noise)).sum(-1)
        return -F.logsigmoid(good).mean() - F.logsigmoid(-bad).mean()


torch.manual_seed(0)
model = SkipGram()
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-2)
for _ in range(6):
    centre, context, noise = torch.randint(50, (10,)), torch.randint(50, (10,)), torch.randint(50, (10, 4))
    loss = model(centre, context, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

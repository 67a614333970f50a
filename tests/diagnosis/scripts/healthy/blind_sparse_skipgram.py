"""Most embedding rows have no gradient at each step, all output vectors start at zero, and a sigmoid appears next to
BCE-with-logits, because this is sparse word2vec and the sigmoid is only a metric."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, GROUPS, DIM = 2000, 20, 16


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM, sparse=True)
        self.context = nn.Embedding(VOCAB, DIM, sparse=True)
        nn.init.uniform_(self.center.weight, -0.5, 0.5)
        nn.init.zeros_(self.context.weight)  # as in the original word2vec code

    def forward(self, c, ctx):
        return (self.center(c).unsqueeze(1) * self.context(ctx)).sum(-1)  # (N,1,D) * (N,K,D)


def sample(n, negatives=5):
    """Frequent words come first; words with the same id modulo GROUPS occur together."""
    c = (torch.rand(n).pow(3) * VOCAB).long()
    pos = (torch.rand(n).pow(3) * (VOCAB // GROUPS)).long() * GROUPS + c % GROUPS
    neg = (torch.rand(n, negatives).pow(3) * VOCAB).long()
    ctx = torch.cat([pos.unsqueeze(1), neg], dim=1)
    label = torch.zeros(n, 1 + negatives)
    label[:, 0] = 1.0
    return c, ctx, label


def main():
    torch.manual_seed(0)
    model = SkipGram()
    opt = torch.optim.SparseAdam(model.parameters(), lr=5e-2)
    for step in range(60):
        c, ctx, label = sample(1024)
        logits = model(c, ctx)
        loss = F.binary_cross_entropy_with_logits(logits, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 or step == 59:
            with torch.no_grad():
                p = torch.sigmoid(logits)
                gap = (p[:, 0].mean() - p[:, 1:].mean()).item()
            print(f"{step:2d} loss {loss.item():.4f}  p(pos)-p(neg) {gap:.3f}")


if __name__ == "__main__":
    main()

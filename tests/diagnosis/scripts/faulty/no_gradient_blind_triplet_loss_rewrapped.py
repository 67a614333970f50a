"""The loss is rebuilt with torch.tensor from Python numbers, so it is cut off from the network and no parameter gets
a gradient."""

import torch
import torch.nn as nn

torch.manual_seed(14)


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2),
            nn.PReLU(),
            nn.Conv2d(8, 8, 3, stride=2),
            nn.PReLU(),
        )
        self.fc = nn.Linear(8 * 2 * 2, 8)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def triplet_loss(anchor, positive, negative, margin=1.0):
    losses = []
    for a, p, n in zip(anchor, positive, negative):
        d_pos = torch.dist(a, p)
        d_neg = torch.dist(a, n)
        losses.append(max(d_pos.item() - d_neg.item() + margin, 0.0))  # finds: no-gradient
    # needs requires_grad, otherwise backward() complains
    return torch.tensor(losses, requires_grad=True).mean()


def sample_triplets(protos, n):
    k = len(protos)
    la = torch.randint(0, k, (n,))
    ln = (la + torch.randint(1, k, (n,))) % k
    noise = lambda t: t + 0.3 * torch.randn_like(t)
    return noise(protos[la]), noise(protos[la]), noise(protos[ln])


net = EmbeddingNet()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
prototypes = torch.randn(5, 1, 12, 12)

for step in range(40):
    a, p, n = sample_triplets(prototypes, 32)
    loss = triplet_loss(net(a), net(p), net(n))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print("step %3d  triplet loss %.4f" % (step, loss.item()))

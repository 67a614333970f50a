"""Train an autoencoder with a classifier on its code."""

import torch
from torch import nn
from torch.nn import functional as F


class CodeClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))
        self.decoder = nn.Linear(4, 10)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        code = self.encoder(x)
        code = code.detach()  # finds: no-gradient
        return self.decoder(code), self.classifier(code)


def main():
    torch.manual_seed(0)
    model = CodeClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = torch.randn(30, 10), torch.randint(0, 3, (30,))
    for step in range(5):
        optimizer.zero_grad()
        decoded, logits = model(x)
        losses = {"rebuild": F.mse_loss(decoded, x), "class": F.cross_entropy(logits, y)}
        loss = sum(losses.values())
        loss.backward()
        optimizer.step()
        print(step, {k: round(v.item(), 3) for k, v in losses.items()})


if __name__ == "__main__":
    main()

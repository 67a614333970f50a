"""Train an image encoder against class embeddings that are computed once."""

import torch
from torch import nn
from torch.nn import functional as F


class TextTower(nn.Module):
    def __init__(self, words, dim):
        super().__init__()
        self.table = nn.EmbeddingBag(words, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids):
        return F.normalize(self.proj(torch.relu(self.table(ids))), dim=-1)


def train(steps=4):
    torch.manual_seed(9)
    text = TextTower(30, 16)
    vision = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.AdamW([*text.parameters(), *vision.parameters()], lr=1e-3)

    prompts = torch.randint(0, 30, (5, 3))
    class_vectors = text(prompts)
    for _ in range(steps):
        images, labels = torch.randn(10, 1, 8, 8), torch.randint(0, 5, (10,))
        logits = F.normalize(vision(images), dim=-1) @ class_vectors.t() * 10
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()  # finds: freed-graph
        optimizer.step()


if __name__ == "__main__":
    train()

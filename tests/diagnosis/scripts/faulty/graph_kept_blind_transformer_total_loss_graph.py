"""The epoch loss is summed as a tensor with its graph, so the graph of every batch stays in memory until the epoch
ends."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class ReverseTagger(nn.Module):
    """predict, at every position, the token at the mirrored position"""

    def __init__(self, vocab, d_model=32, nhead=4, seq_len=8):
        super().__init__()
        self.tok = nn.Embedding(vocab, d_model)
        self.pos = nn.Parameter(torch.randn(seq_len, d_model) * 0.02)
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=1)
        self.out = nn.Linear(d_model, vocab)

    def forward(self, tokens):
        return self.out(self.encoder(self.tok(tokens) + self.pos))


def train_one_epoch(model, loader, criterion, optimizer, scheduler):
    model.train()
    total_loss = 0
    for tokens, target in loader:
        optimizer.zero_grad()
        logits = model(tokens)
        loss = criterion(logits.transpose(1, 2), target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total_loss += loss  # finds: graph-kept
    return total_loss / len(loader)


def main():
    torch.manual_seed(31)
    vocab, seq_len, epochs = 12, 8, 5
    tokens = torch.randint(0, vocab, (320, seq_len))
    loader = DataLoader(TensorDataset(tokens, tokens.flip(1)), batch_size=32, shuffle=True)
    model = ReverseTagger(vocab, seq_len=seq_len)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        avg = train_one_epoch(model, loader, criterion, optimizer, scheduler)
        print(f"| epoch {epoch:2d} | avg loss {avg:.4f} |")


if __name__ == "__main__":
    main()

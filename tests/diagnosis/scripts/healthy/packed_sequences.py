"""Train a recurrent classifier on packed sequences of different lengths."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.gru = nn.GRU(8, 12, batch_first=True)
        self.out = nn.Linear(12, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.gru(packed)
        return self.out(last[-1])


def batch(n):
    texts = [torch.randint(1, 30, (int(k),)) for k in torch.randint(2, 9, (n,))]
    lengths = torch.tensor([len(t) for t in texts])
    return pad_sequence(texts, batch_first=True), lengths, (lengths > 5).long()


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    ids, lengths, labels = batch(10)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(ids, lengths), labels).backward()
    optimizer.step()

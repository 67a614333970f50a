"""A model that shows its latest hidden states to a logger after every step, and keeps numbers of all."""

import torch
from torch import nn

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 16)
        self.hidden = None
        self.window = []

    def forward(self, x):
        self.hidden = self.first(x).relu()
        self.window = [*self.window[-1:], self.hidden]
        return self.second(self.hidden)


def main():
    encoder, head = Encoder(), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 0.01)
    history = []
    for _ in range(20):
        x = torch.randn(5, 8)
        optimizer.zero_grad()
        loss = (head(encoder(x).relu()) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        history.append((loss.detach(), encoder.hidden.norm().item()))
    print(len(history), history[-1][0].item())


main()

"""The model of `torchatlas demo`: a small GPT in pure torch, and one step of its training."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from torchatlas.capturing import capture
from torchatlas.graph import Graph


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.project_in(x).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """One layer: attention, then a small network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        result: torch.Tensor = x + self.mlp(self.norm_2(x))
        return result


class TinyGPT(nn.Module):
    """A language model like GPT-2, small enough to train on any machine. The output layer shares the embedding."""

    def __init__(
        self, vocabulary: int = 256, width: int = 64, layers: int = 4, heads: int = 4, context: int = 64
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def training_step() -> Graph:
    """Build the model and capture one training step: forward, backward, AdamW."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TinyGPT()
        text = torch.randint(0, 256, (4, 33))
    tokens, following = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    return capture(model, tokens, loss=loss, optimizer=partial(torch.optim.AdamW, lr=1e-3))

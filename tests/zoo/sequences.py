"""Recurrence, attention and the models made of them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.specimen import Call, specimen


class CellLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[1], 4)
        outputs = []
        for step in x:
            h, c = self.cell(step, (h, c))
            outputs.append(h)
        return torch.stack(outputs)


@specimen("an LSTM cell in a Python loop: one module, many calls")
def lstm_cell_loop() -> Call:
    return CellLoop(), (torch.randn(4, 2, 3),), {}


@specimen("nn.LSTM: one module call, many operators, nested output, dropout between layers")
def lstm() -> Call:
    return nn.LSTM(3, 4, num_layers=2, dropout=0.5), (torch.randn(4, 2, 3),), {}


@specimen("nn.GRU with batch first and a given initial state")
def gru() -> Call:
    return nn.GRU(3, 4, batch_first=True), (torch.randn(2, 4, 3), torch.randn(1, 2, 4)), {}


@specimen("a bidirectional LSTM: two directions over the same input")
def bidirectional_lstm() -> Call:
    return nn.LSTM(3, 4, bidirectional=True), (torch.randn(3, 2, 3),), {}


class PackedGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0])[0]


@specimen("packed sequences: a named tuple goes into the module, lengths are read on the CPU", fakes=False)
def packed_sequence() -> Call:
    return PackedGRU(), (torch.randn(4, 3, 3), torch.tensor([4, 2, 1])), {}


class VaryingLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNNCell(2, 3)

    def forward(self, sequences: list[Tensor]) -> list[Tensor]:
        ends = []
        for sequence in sequences:
            h = sequence.new_zeros(3)
            for step in sequence:
                h = self.cell(step, h)
            ends.append(h)
        return ends


@specimen("an RNN loop whose number of steps differs per example, in a list")
def rnn_varying_length() -> Call:
    return VaryingLength(), ([torch.randn(length, 2) for length in (3, 1, 2)],), {}


class SelfAttention(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.options = options

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.attention(x, x, x, **self.options)


@specimen("nn.MultiheadAttention: out_proj's weight is used though out_proj is never called")
def multihead_attention() -> Call:
    return SelfAttention(), (torch.randn(2, 3, 8),), {}


@specimen("the same attention without weights: a None output, and another kernel inside")
def multihead_attention_no_weights() -> Call:
    return SelfAttention(need_weights=False), (torch.randn(2, 3, 8),), {}


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@specimen("fused causal attention: one operator where a picture wants softmax(QK)V")
def sdpa_causal() -> Call:
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    return causal_attention, (q, k, v), {}


@specimen("a Transformer layer in training, dropout on")
def transformer_layer_training() -> Call:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(2, 3, 8),), {}


class WithoutGrad(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@specimen("the same layer in eval without grad: the fast path, one fused operator for the layer", trains=False)
def transformer_layer_fast_path() -> Call:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    return WithoutGrad(layer), (torch.randn(2, 3, 8),), {}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)).masked_fill(~mask, -torch.inf)
        x = x + self.project((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(6, 8)
        self.blocks = nn.ModuleList(Block(8, 2) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@specimen("a small GPT: repeated blocks to fold, attention by hand, tied head, loss inside the model")
def tiny_gpt() -> Call:
    return TinyGPT(), (torch.randint(0, 11, (2, 5)),), {}


class CachedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k, v = torch.cat([cache["k"], k], dim=1), torch.cat([cache["v"], v], dim=1)
        cache["k"], cache["v"] = k.detach(), v.detach()
        return F.scaled_dot_product_attention(q, k, v)


@specimen("decoding with a key-value cache: the caller's dict is changed by the call")
def key_value_cache() -> Call:
    cache = {"k": torch.randn(1, 3, 4), "v": torch.randn(1, 3, 4)}
    return CachedAttention(), (torch.randn(1, 1, 4), cache), {}

"""How much memory does a training step of a large model take? Nothing is allocated to find out."""

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.units import format_bytes, format_count


def build() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(4096, 32, 16384, batch_first=True, norm_first=True) for _ in range(32)]
    return nn.Sequential(*layers)


graph = atlas.capture(build, torch.empty(1, 1024, 4096), optimizer=torch.optim.AdamW, fake=True)
root = graph.scopes[""]
print(f"{format_count(root.parameters)} parameters, {root.operations:,} operations in one training step")
print(f"peak memory {format_bytes(graph.peak_bytes)}")

"""Makes the pictures of docs/gallery: python benchmarks/gallery.py [NAME ...]

Models come from torchvision and transformers with random weights, captured without computing anything (fake=True).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from programs import load_torchvision
from torch import nn

import torchatlas as atlas
from torchatlas.demo import training_step
from torchatlas.graph import Graph

FOLDER = Path(__file__).parents[1] / "docs" / "gallery"
IMAGE = (2, 3, 224, 224)


class LSTMLoop(nn.Module):
    """A cell in a Python loop."""

    def __init__(self, steps: int = 50) -> None:
        super().__init__()
        self.cell, self.head, self.steps = nn.LSTMCell(64, 128), nn.Linear(128, 10), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = state = x.new_zeros(x.shape[0], 128)
        for step in range(self.steps):
            hidden, state = self.cell(x[:, step], (hidden, state))
        logits: torch.Tensor = self.head(hidden)
        return logits


def vision(name: str, **options: Any) -> Callable[[], Graph]:
    def make() -> Graph:
        model = getattr(load_torchvision().models, name)(weights=None, **options).eval()
        return atlas.capture(model, torch.zeros(IMAGE), fake=True)

    return make


def gpt2_step() -> Graph:
    load_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    tokens = torch.zeros(2, 64, dtype=torch.long)
    return atlas.capture(
        model, tokens, labels=tokens, loss=lambda out: out.loss, optimizer=torch.optim.AdamW, fake=True
    )


PICTURES: dict[str, tuple[Callable[[], Graph], dict[str, Any]]] = {
    "resnet18": (vision("resnet18"), {"title": "ResNet-18"}),
    "resnet18_figure": (  # for a paper, across both columns
        vision("resnet18"),
        {"size": "full", "depth": 2, "direction": "right", "title": None, "footer": False},
    ),
    "googlenet": (
        vision("googlenet", init_weights=False, aux_logits=False),
        {"title": "GoogLeNet", "color_by": "flops", "critical_path": "flops", "theme": "dark"},
    ),
    "vit_b_16": (vision("vit_b_16"), {"title": "ViT-B/16"}),
    "swin_t": (vision("swin_t"), {"title": "Swin-T"}),
    "densenet121": (vision("densenet121"), {"title": "DenseNet-121"}),
    "lstm_loop": (
        lambda: atlas.capture(LSTMLoop(), torch.zeros(4, 50, 64), backward=True, fake=True),
        {"title": "LSTMCell in a loop of 50, forward and backward"},
    ),
    "gpt2_step": (gpt2_step, {"title": "GPT-2 small, a training step"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*PICTURES, "plots"]))
    names = parser.parse_args().names or [*PICTURES, "plots"]
    for name in names:
        if name != "plots":
            make, options = PICTURES[name]
            picture = atlas.draw(make(), **options)
            picture.save(FOLDER / f"{name}.png")
            print(
                f"{name}: {picture.boxes} boxes, {picture.open_groups} open, text from {picture.smallest_text:.1f} px"
            )
    if "plots" in names:
        step = training_step()
        for kind in ("memory", "roofline", "time"):
            atlas.plot(step, kind).save(FOLDER / f"plot_{kind}.png")


if __name__ == "__main__":
    main()

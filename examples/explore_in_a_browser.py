"""A training step as one HTML file to explore, with numbers of one's own; two versions side by side."""

import tempfile
from pathlib import Path

import torch

import torchatlas as atlas

folder = Path(tempfile.mkdtemp())


def step(activation: torch.nn.Module) -> atlas.Graph:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), activation, torch.nn.Linear(256, 10))
    return atlas.capture(model, torch.randn(32, 64), optimizer=torch.optim.AdamW, values="stats")


before, after = step(torch.nn.ReLU()), step(torch.nn.GELU())
sensitivity = {"0": 0.7, "2": 0.2}  # by name of a module or node
page = before.save(folder / "step.html", title="a training step", overlay={"sensitivity": sensitivity})
print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, to be opened in a browser")
print(atlas.compare(before, after).save(folder / "relu_or_gelu.html"))
print("the graph comes back from the page:", atlas.load(page) == before)

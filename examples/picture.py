"""A model, and its training step coloured by FLOPs, as pictures that fit a page."""

import tempfile
from pathlib import Path

import torch

import torchatlas as atlas

layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model = torch.nn.Sequential(
    torch.nn.Embedding(1000, 64), torch.nn.TransformerEncoder(layer, 6), torch.nn.Linear(64, 10)
)
folder = Path(tempfile.mkdtemp())

forward = atlas.capture(model, torch.randint(0, 1000, (8, 32)))
picture = atlas.draw(forward, title="a small transformer")
print(picture.save(folder / "forward.png"), f"{picture.boxes} boxes, text from {picture.smallest_text:.1f} px")

step = atlas.capture(model, torch.randint(0, 1000, (8, 32)), optimizer=torch.optim.AdamW)
print(atlas.draw(step, color_by="flops", critical_path=True, theme="dark").save(folder / "step.svg"))
print(atlas.draw(step, view="modules", phases=["forward"], width=800, height=1000).save(folder / "architecture.png"))
print(atlas.plot(step, "memory").save(folder / "memory.png"))

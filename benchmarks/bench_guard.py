"""What guarded tests cost: a suite of three models with atlas_guard beside the same suite without.

    python benchmarks/bench_guard.py [--rounds 5]

Each suite is a pytest process of its own, in turn. A U-Net, a decoder of four layers and an encoder-decoder are run
forward twice, for a training step, and for three steps; guarded, these are `unchanged` and `within`, `within` of the
step with its optimizer, and `no_findings`. Shown is the processor time of the whole process, and the wall time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODELS = """
import pytest, torch
from torch import nn

def block(inner, outer, stride):
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([block(3, 16, 1), block(16, 32, 2), block(32, 64, 2)])
        self.up, self.out = nn.ModuleList([block(96, 32, 1), block(48, 16, 1)]), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
        for up, skip in zip(self.up, reversed(kept[:-1])):
            x = up(torch.cat([nn.functional.interpolate(x, scale_factor=2), skip], 1))
        return self.out(x)

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
        self.embed, self.head = nn.Embedding(256, 128), nn.Linear(128, 256)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layers(self.embed(ids), mask=mask, is_causal=True))

class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.body = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

    def forward(self, a, b):
        return self.out(self.body(self.embed(a), self.embed(b)))

INPUTS = {
    UNet: (torch.randn(2, 3, 64, 64),),
    GPT: (torch.randint(0, 256, (2, 32)),),
    Translator: (torch.randint(0, 50, (2, 9)), torch.randint(0, 50, (2, 7))),
}

def step(model, optimizer, inputs):
    optimizer.zero_grad()
    model(*inputs).square().mean().backward()
    optimizer.step()

@pytest.fixture(params=INPUTS)
def case(request):
    torch.manual_seed(0)
    model = request.param()
    return model, INPUTS[request.param]
"""
ALONE = """
def test_forward(case):
    model, inputs = case
    model(*inputs), model(*inputs)

def test_step(case):
    model, inputs = case
    step(model, torch.optim.AdamW(model.parameters()), inputs)

def test_three_steps(case):
    model, inputs = case
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        step(model, optimizer, inputs)
"""
GUARDED = """
def test_forward(case, atlas_guard):
    model, inputs = case
    atlas_guard.unchanged(model, *inputs)
    atlas_guard.within(model, *inputs, flops="+1%", parameters=0)

def test_step(case, atlas_guard):
    model, inputs = case
    loss = lambda output: output.square().mean()
    atlas_guard.within(model, *inputs, loss=loss, optimizer=torch.optim.AdamW, peak_bytes="+5%", ops=0)

def test_three_steps(case, atlas_guard):
    model, inputs = case
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    atlas_guard.no_findings(lambda: [step(model, optimizer, inputs) for _ in range(3)], model=model)
"""


def spent(folder: Path, *arguments: str) -> tuple[float, float]:
    """Processor seconds and wall seconds of a run of pytest."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return processor, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_alone.py").write_text(MODELS + ALONE)
        (folder / "test_guarded.py").write_text(MODELS + GUARDED)
        spent(folder, "test_alone.py")
        spent(folder, "--atlas-update", "test_guarded.py")
        pairs = [(spent(folder, "test_alone.py"), spent(folder, "test_guarded.py")) for _ in range(options.rounds)]
    print("| seconds | alone | guarded | added: median (least to most) |\n|---|---|---|---|")
    for at, what in enumerate(("processor", "wall")):
        alone, guarded = ([pair[side][at] for pair in pairs] for side in (0, 1))
        added = [b - a for a, b in zip(alone, guarded, strict=True)]
        shown = f"{statistics.median(added):.1f} ({min(added):.1f} to {max(added):.1f})"
        print(f"| {what} | {statistics.median(alone):.1f} | {statistics.median(guarded):.1f} | {shown} |")


if __name__ == "__main__":
    main()

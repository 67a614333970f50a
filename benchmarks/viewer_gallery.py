"""Makes the screenshots of the viewer in docs/gallery: python benchmarks/viewer_gallery.py [NAME ...] [--sizes FOLDER]

Needs Chromium and Playwright, as the browser tests do. `--sizes` also writes every page at three sizes, light and
dark, into a folder of its own: to be looked at.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from gallery import FOLDER, LSTMLoop, gpt2_step, vision
from playwright.sync_api import Page, sync_playwright
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torchatlas as atlas
from torchatlas.graph import Graph

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import giant_llama

SIZES = ((1600, 1000), (1100, 720), (390, 844))


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.GroupNorm(8, channels), nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, before), nn.Conv2d(before, after, 3, padding=1)
        self.time, self.norm2 = nn.Linear(64, after), nn.GroupNorm(8, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(h)))


class DiffusionUNet(nn.Module):
    """Two levels down, a middle with attention, two levels up."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.time = nn.Conv2d(3, 32, 3, padding=1), nn.Sequential(nn.Linear(1, 64), nn.SiLU())
        self.down = nn.ModuleList([Residual(32, 32), Residual(32, 64)])
        self.middle = nn.ModuleList([Residual(64, 64), Attention(64), Residual(64, 64)])
        self.up = nn.ModuleList([Residual(128, 32), Residual(64, 32)])
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time, kept, h = self.time(step), [], self.inp(x)
        for block in self.down:
            h = block(h, time)
            kept.append(h)
            h = nn.functional.avg_pool2d(h, 2)
        for block in self.middle:
            h = block(h, time) if isinstance(block, Residual) else block(h)
        for block in self.up:
            h = block(torch.cat([nn.functional.interpolate(h, scale_factor=2.0), kept.pop()], 1), time)
        noise: torch.Tensor = self.out(h)
        return noise


def unet_step() -> Graph:
    inputs = torch.randn(2, 3, 32, 32), torch.rand(2, 1)
    return atlas.capture(DiffusionUNet(), *inputs, optimizer=torch.optim.AdamW, warmup=1, repeat=5, values="stats")


def lstm_step() -> Graph:
    return atlas.capture(LSTMLoop(), torch.randn(4, 50, 64), backward=True, warmup=1, repeat=5)


def llama_step() -> Graph:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, tokens = giant_llama("405B"), torch.zeros(1, 2048, dtype=torch.long)
        optimizer = torch.optim.AdamW(model.parameters())
        with atlas.recording(model) as recorded:
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
    return recorded.graph


@dataclass(frozen=True)
class Shot:
    make: Callable[[], Graph]
    title: str
    state: str  # what the page shows: a change of the viewer's state, in JavaScript
    then: str = ""  # and what is done after that


SHOTS = {
    "viewer_resnet18": Shot(vision("resnet18"), "ResNet-18", "{heat: 'flops', pane: 'roofline'}"),
    "viewer_gpt2_step": Shot(
        gpt2_step,
        "GPT-2 small, a training step",
        "{pane: 'memory'}",
        "document.querySelector('.memory button')?.click()",
    ),
    "viewer_unet_step": Shot(unet_step, "diffusion U-Net, a training step", "{heat: 'time', pane: 'time'}"),
    "viewer_lstm_loop": Shot(lstm_step, "LSTMCell in a loop of 50", "{pane: 'backward', theme: 'dark'}"),
    "viewer_llama_405b": Shot(llama_step, "Llama 405B, a training step", "{pane: 'table'}"),
}


def show(page: Page, file: Path, shot: Shot, more: str = "{}") -> None:
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.evaluate(f"torchatlas.app.store.update({{...{shot.state}, ...{more}}})")
    page.wait_for_timeout(400)
    if shot.then:
        page.evaluate(shot.then)
    page.wait_for_timeout(600)  # until nothing moves any more


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(SHOTS)}; all if none is named")
    parser.add_argument("--sizes", type=Path, help="a folder for every page at three sizes, light and dark")
    options = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in options.names or SHOTS:
            shot, file = SHOTS[name], Path(folder) / f"{name}.html"
            shot.make().save(file, title=shot.title)
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            show(page, file, shot)
            page.screenshot(path=FOLDER / f"{name}.png")
            print(f"{name}: {file.stat().st_size / 1e6:.1f} MB")
            for width, height in SIZES if options.sizes else ():
                for theme in ("light", "dark"):
                    page.set_viewport_size({"width": width, "height": height})
                    show(page, file, shot, f"{{theme: '{theme}'}}")
                    page.screenshot(path=options.sizes / f"{name}_{width}_{theme}.png")
            page.close()


if __name__ == "__main__":
    main()

"""Makes the pictures of docs/learn that torchatlas draws: python benchmarks/learn/pictures.py [--player]

--player also makes the screenshot of the backward player, which needs Chromium and Playwright as the browser tests do.
The two plots of measured numbers are made by complexity.py.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import torch

import torchatlas as atlas

FOLDER = Path(__file__).parents[2] / "docs" / "learn" / "pictures"
Leaves = dict[str, torch.Tensor]


def leaves(*names: str) -> Leaves:
    return {name: torch.tensor([1.0, 2.0], requires_grad=True) for name in names}


def one_path() -> tuple[torch.Tensor, Leaves]:
    params = leaves("x")
    return (params["x"] * 3 + 2).sum(), params


def two_paths() -> tuple[torch.Tensor, Leaves]:
    params = leaves("x")
    return (params["x"] * 2 + params["x"] * 3).sum(), params


def sum_at_a_node() -> tuple[torch.Tensor, Leaves]:
    params = leaves("x", "w")
    y = params["x"] * params["w"]
    return (y.sin() + y).sum(), params


PICTURES = {"one_path": one_path, "two_paths": two_paths, "sum_at_a_node": sum_at_a_node}


def player(path: Path) -> None:
    """The page of the backward pass of data-flow.md, section 4, while one of two gradients has come to a node."""
    from playwright.sync_api import sync_playwright

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    loss = (y.sin() + y).sum()
    atlas.record_backward(loss, retain_graph=True)  # the first run is slower
    record = atlas.record_backward(loss, params={"x": x})
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "player.html"
        record.graph.save(file, backward=record, title="y = x * 3; loss = (y.sin() + y).sum()")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 700})
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached")
        page.evaluate("torchatlas.app.store.update({pane: 'backward', moment: 2})")
        page.wait_for_timeout(900)
        page.screenshot(path=str(path))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--player", action="store_true", help="also the screenshot")
    options = parser.parse_args()
    for name, build in PICTURES.items():
        loss, params = build()
        graph = atlas.autograd_graph(loss, params=params)
        picture = atlas.draw(graph, title=None, footer=False, legend=False, direction="right", size=6.5)
        picture.save(FOLDER / f"{name}.svg")
    if options.player:
        player(FOLDER / "player.png")


if __name__ == "__main__":
    main()

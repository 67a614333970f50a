"""What a newcomer looks for is found: gradients that vanish, all rounds of a repeat, what a small window can hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from browser import PHONE
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph

ROUNDS = 8


@pytest.fixture(scope="module")
def vanishing() -> Graph:
    layers = [layer for _ in range(ROUNDS) for layer in (nn.Linear(16, 16), nn.Sigmoid())]
    return atlas.capture(nn.Sequential(*layers, nn.Linear(16, 1)), torch.randn(4, 16), backward=True, values="stats")


def rounds_of(page) -> list[str]:
    return [row for row in page.get_by_role("treeitem").all_inner_texts() if re.match(r"\W*round \d+ of", row)]


def test_vanishing_gradients_differ_in_colour(page_of, vanishing: Graph) -> None:
    page = page_of(vanishing)
    page.get_by_label("colour boxes by").select_option("gradient")
    page.locator(".legend", has_text="powers of ten").wait_for()
    page.locator('[role="treeitem"]', has_text=f"×{ROUNDS}").last.locator(".row").first.click()
    page.get_by_role("button", name=f"show all {ROUNDS}").click()
    page.get_by_role("button", name=f"fold all {ROUNDS}").wait_for()
    assert len(rounds_of(page)) == ROUNDS
    fills = page.evaluate(
        "torchatlas.app.scene.frames.filter(f => f.item.round >= 0).map(f => torchatlas.app.heatScale()(f.item)[0])"
    )
    assert len(set(fills)) == ROUNDS  # on a scale from zero, all but the last look the same


def test_rounds_that_are_shown_can_be_folded_again(page_of, vanishing: Graph) -> None:
    page = page_of(vanishing)
    badge = page.evaluate(
        """() => {
            const { app, shell } = torchatlas, { left, top, scale } = shell.graph.view;
            const frame = app.scene.frames.find(f => f.open && f.item.repeat > 1);
            const box = shell.graph.canvas.getBoundingClientRect();
            return [box.left + left + (frame.x + frame.width - 14) * scale, box.top + top + (frame.y + 9) * scale];
        }"""
    )
    page.mouse.click(*badge)
    page.wait_for_selector("text=fold all")
    assert len(rounds_of(page)) == ROUNDS
    page.get_by_role("button", name=f"fold all {ROUNDS} rounds").click()
    page.get_by_role("button", name=f"show all {ROUNDS}").wait_for()
    assert rounds_of(page) == []


def test_a_phone_shows_the_inside_of_a_long_model(page_of) -> None:
    model = nn.Sequential(*(nn.Linear(8 + i, 9 + i) for i in range(14)))  # no two alike: nothing folds
    graph = atlas.capture(model, torch.randn(2, 8), optimizer=torch.optim.SGD)
    page = page_of(graph, viewport=PHONE, is_mobile=True, has_touch=True)
    assert page.get_by_role("treeitem").filter(has_text="Linear").count() > 5
    assert page.evaluate("torchatlas.shell.graph.view.scale") > 0.6  # and it can be read


def test_lines_that_are_not_drawn_are_counted(page_of, vanishing: Graph) -> None:
    page = page_of(vanishing)
    assert "not drawn" not in page.locator(".legend").inner_text()
    page.evaluate("torchatlas.app.scene.leftOut = 1234")
    page.get_by_label("colour boxes by").select_option("memory")
    page.locator(".legend", has_text="1,234 long lines are not drawn").wait_for()


def test_a_range_in_the_tree_has_no_dots_of_its_own(page_of) -> None:
    """A row that is too narrow ends in dots: "layers.0 … 7" was cut to "layers.0 … …"."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    graph = atlas.capture(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(1, 3, 8))
    names = page_of(graph).locator(".tree .name").all_inner_texts()
    assert any("layers.0–layers.3" in name for name in names), names
    assert [name for name in names if "…" in name] == []


def test_the_tree_keeps_the_focus(page_of, vanishing: Graph) -> None:
    page = page_of(vanishing)
    focused = "document.activeElement.dataset.key"
    page.get_by_role("treeitem").first.focus()
    first = page.evaluate(focused)
    page.keyboard.press("ArrowLeft")  # closes it: the rows are made anew
    page.wait_for_selector('li:focus[aria-expanded="false"]')
    assert page.evaluate(focused) == first
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('li:focus[aria-expanded="true"]')
    page.keyboard.press("ArrowRight")
    child = page.evaluate(focused)
    assert child != first
    page.keyboard.press("End")
    page.keyboard.press("Home")
    assert page.evaluate(focused) == first


def test_what_only_the_second_graph_has_can_be_read_about(page_of, tmp_path: Path) -> None:
    def step(*layers: nn.Module) -> Graph:
        return atlas.capture(nn.Sequential(nn.Linear(4, 4), *layers), torch.randn(2, 4))

    path = atlas.compare(step(), step(nn.Tanh())).save(tmp_path / "two.html")
    page = page_of(Path(path))
    page.locator(".compare .link", has_text="tanh").click()
    page.wait_for_selector("text=Only the second graph has it.")
    assert "tanh" in page.locator(".details h3").inner_text()


def test_times_of_one_run_are_not_compared(page_of, tmp_path: Path) -> None:
    def step(width: int, repeat: int) -> Graph:
        return atlas.capture(nn.Linear(4, width), torch.ones(2, 4), repeat=repeat)

    def headings(repeat: int) -> tuple[list[str], str]:
        path = atlas.compare(step(4, repeat), step(400, repeat)).save(tmp_path / f"{repeat}.html")
        pane = page_of(Path(path)).locator(".compare")
        return pane.locator("th").all_inner_texts(), pane.inner_text()

    names, text = headings(1)
    assert "parameters" in names
    assert "time" not in names
    assert "one run each: not compared" in text
    names, text = headings(3)
    assert "time" in names
    assert "median of 3" in text


def test_the_graph_can_be_taken_out_of_the_page(page_of, vanishing: Graph, tmp_path: Path) -> None:
    page = page_of(vanishing)
    page.locator("summary", has_text="share").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=".atlas").click()
    download.value.save_as(tmp_path / "again.atlas")
    assert atlas.load(tmp_path / "again.atlas") == vanishing


def test_paper_is_white(page_of, vanishing: Graph) -> None:
    page = page_of(vanishing, color_scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_selector('html[style*="color-scheme: light"]', state="attached")
    corner = "[...torchatlas.shell.graph.canvas.getContext('2d').getImageData(2, 2, 1, 1).data]"
    assert page.evaluate(corner) == [255, 255, 255, 255]
    page.emulate_media(media="screen")
    page.wait_for_selector('html[style*="color-scheme: dark"]', state="attached")


def test_a_training_loop_opens_with_a_module_and_from_the_left_of_its_iteration(page_of) -> None:
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU())))
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    with atlas.recording(model) as rec:
        for _ in range(3):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for average, parameter in zip(averages, model.parameters(), strict=True):
                    average.lerp_(parameter, 0.1)
    page = page_of(rec.graph, viewport={"width": 1100, "height": 800})
    kinds, left = page.evaluate(
        """() => {
            const { app, shell } = torchatlas, { left, scale } = shell.graph.view;
            const open = app.scene.frames.filter(f => f.open);
            const iteration = open.find(f => f.item.kind === "iteration");
            return [open.map(f => f.item.kind), iteration && left + iteration.x * scale];
        }"""
    )
    assert "module" in kinds
    assert left >= 0

"""The viewer where it is not a file of its own: in the frame of a notebook, from the server, with scripts off."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from browser import READY_MS
from torch import nn
from viewer.graphs import training_step

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.viewer.browser import redirecting_page
from torchatlas.render.viewer.captures import Captures
from torchatlas.render.viewer.server import CaptureServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Page


@pytest.fixture(scope="module")
def step() -> Graph:
    return training_step()


def cell(graph: Graph, path: Path) -> Path:
    """A page as nbconvert writes it: what the graph shows between other cells."""
    path.write_text(f"<!doctype html><body><h1>notebook</h1><div>{graph._repr_html_()}</div><p>the next cell", "utf-8")
    return path


# -- notebooks ---------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_the_viewer(page_of, step: Graph, tmp_path: Path) -> None:
    page = page_of(cell(step, tmp_path / "cell.html"), ready=None)
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for(state="attached")
    assert "backward" in frame.get_by_role("tree").inner_text()
    box = page.locator("iframe").bounding_box()
    assert box["height"] == pytest.approx(600, abs=3)
    assert page.locator("img").bounding_box() == pytest.approx(box, abs=3)  # the picture lies below it
    below = page.locator("details summary").bounding_box()
    assert below["y"] >= box["y"] + box["height"]


def test_the_frame_is_a_stranger_to_the_notebook(page_of, step: Graph, tmp_path: Path) -> None:
    page = page_of(cell(step, tmp_path / "cell.html"), ready=None)
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready=yes]").wait_for(state="attached")
    inner = next(one for one in page.frames if one is not page.main_frame)
    assert inner.evaluate("origin") == "null"
    assert inner.evaluate("try { void parent.document.body; 'open' } catch (error) { error.name }") == "SecurityError"


def test_without_frames_or_scripts_a_picture_is_left(page_of, step: Graph, tmp_path: Path) -> None:
    path = cell(step, tmp_path / "cell.html")
    text = path.read_text("utf-8")
    start, end = text.index("<iframe"), text.index("</iframe>") + len("</iframe>")
    path.write_text(text[:start] + text[end:], "utf-8")  # as a notebook that is not trusted does
    seen(page_of(path, ready=None).locator("img"))


def test_a_page_with_scripts_off_is_a_picture(page_of, step: Graph, tmp_path: Path) -> None:
    page = page_of(step, ready=None, java_script_enabled=False)
    seen(page.locator("noscript img"))
    assert "scripts are off" in page.locator("body").inner_text()
    assert "reading" not in page.locator("body").inner_text()


def seen(image) -> None:
    """A picture that is there, and in the window."""
    box = image.bounding_box()
    assert box["width"] > 300
    assert box["height"] > 200
    assert box["x"] >= 0


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(step: Graph, tmp_path: Path) -> Path:
    (folder := tmp_path / "runs").mkdir()
    step.save(folder / "first.atlas")
    return folder


def opened(browser: Browser, address: str, errors: list[str]) -> tuple[Page, FrameLocator]:
    page = browser.new_page()
    page.set_default_timeout(READY_MS)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.goto(address)
    frame = page.frame_locator("#frame")
    frame.locator("html[data-ready=yes]").wait_for(state="attached")
    return page, frame


def test_captures_are_shown_as_they_come_and_change(browser: Browser, runs: Path) -> None:
    errors: list[str] = []
    with CaptureServer(Captures([runs]), "my runs") as server:
        page, frame = opened(browser, server.address, errors)
        assert "Network" in frame.get_by_role("tree").inner_text()
        small = atlas.capture(nn.Tanh(), torch.ones(2))
        small.save(runs / "second.atlas")
        os.utime(runs / "second.atlas", (time.time() + 60,) * 2)
        page.get_by_role("link", name="second.atlas new").wait_for()
        assert [link.split()[0] for link in page.locator("li a").all_inner_texts()] == ["second.atlas", "first.atlas"]
        page.get_by_role("link", name="second.atlas").click()
        frame.locator("html[data-ready=yes]", has_text="tanh").wait_for(state="attached")
        atlas.capture(nn.Sigmoid(), torch.ones(2)).save(runs / "second.atlas")  # what is shown is shown anew
        frame.locator("html[data-ready=yes]", has_text="sigmoid").wait_for(state="attached")
        assert page.locator("#state").inner_text() == "2 captures"
        page.close()
    assert errors == []


def test_two_captures_are_compared_the_older_first(browser: Browser, runs: Path) -> None:
    errors: list[str] = []
    atlas.capture(nn.Tanh(), torch.ones(2)).save(runs / "second.atlas")
    os.utime(runs / "second.atlas", (time.time() + 60,) * 2)
    with CaptureServer(Captures([runs]), "my runs") as server:
        page, _ = opened(browser, redirecting_page(server.address).as_uri(), errors)
        assert page.url == server.address
        for box in page.get_by_role("checkbox").all():
            box.check()
        page.get_by_role("button", name="compare").click()
        page.wait_for_function("document.querySelectorAll('[aria-current]').length === 2")
        shown = page.frame_locator("#frame").locator('script[type="application/x-atlas"]')
        shown.nth(1).wait_for(state="attached")
        assert [one.get_attribute("data-name") for one in shown.all()] == ["first.atlas", "second.atlas"]
        page.close()
    assert errors == []


def test_a_large_document_is_fetched(browser: Browser, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    monkeypatch.setattr("torchatlas.render.viewer.captures.MOST_INLINE_BYTES", 1000)
    with CaptureServer(Captures([runs]), "my runs") as server:
        page, frame = opened(browser, server.address, errors)
        assert frame.locator('script[type="application/x-atlas"][data-src]').count() == 1
        assert "backward" in frame.get_by_role("tree").inner_text()
        page.close()
    assert errors == []


def test_the_page_ends_the_server_and_says_so(browser: Browser, runs: Path) -> None:
    with CaptureServer(Captures([runs]), "my runs") as server:
        page, _ = opened(browser, server.address, [])
        page.get_by_role("button", name="stop").click()
        page.locator("#state", has_text="The server has ended").wait_for()
        server.wait()
        page.close()


def test_a_page_says_that_its_server_is_gone(browser: Browser, runs: Path) -> None:
    with CaptureServer(Captures([runs]), "my runs") as server:
        page, _ = opened(browser, server.address, [])
    page.locator("#state", has_text="The server does not answer").wait_for()
    page.close()

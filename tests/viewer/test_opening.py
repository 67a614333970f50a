"""Graphs of every kind open, and files can be dropped onto an empty viewer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from browser import DESKTOP, PHONE, Visit
from torch import nn
from viewer.graphs import empty_page, partial, training_step
from viewer.handing_over import hand_over

import torchatlas as atlas
from torchatlas.graph import Graph


@pytest.fixture(scope="module")
def step() -> Graph:
    return training_step()


def test_a_training_step_opens(page_of, step: Graph) -> None:
    page = page_of(step)
    tree = page.get_by_role("tree").inner_text()
    for word in ("forward", "backward", "optimizer", "Network"):
        assert word in tree
    assert page.title() == "Network"
    assert page.locator("canvas").first.bounding_box()["width"] > 300


def test_the_same_graph_is_the_same_file(step: Graph, tmp_path: Path) -> None:
    one, other = step.save(tmp_path / "one.html"), step.save(tmp_path / "other.html")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("suffix", [".atlas", ".json"])
@pytest.mark.parametrize("way", ["chosen", "dropped"])
def test_a_file_is_read_by_an_empty_viewer(page_of, step: Graph, tmp_path: Path, suffix: str, way: str) -> None:
    page = page_of(empty_page(tmp_path), ready="empty")
    hand_over(page, step.save(tmp_path / f"step{suffix}"), way)
    page.locator("html[data-ready=yes]").wait_for(state="attached", timeout=10_000)
    assert "backward" in page.get_by_role("tree").inner_text()


def one_op() -> Graph:
    return atlas.capture(lambda x: x.relu(), torch.ones(2))


def without_modules() -> Graph:
    return atlas.capture(lambda x, y: ((x + y).relu() @ y, y.sum()), torch.ones(2, 2), torch.ones(2, 2))


def autograd_graph() -> Graph:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return atlas.autograd_graph(model(torch.randn(2, 4)).sum())


@pytest.mark.parametrize(
    "make", [Graph, one_op, without_modules, autograd_graph, partial], ids=lambda make: make.__name__
)
def test_odd_graphs_open(page_of, make) -> None:
    graph = make()
    page = page_of(graph)
    for key in ("Tab", "ArrowDown", "Enter", "g", "t", "a", "d", "c", "]", "f", "Backspace", "Escape"):
        page.keyboard.press(key)
    for tab in page.get_by_role("tab").all():
        tab.click()
    if make is Graph:
        assert "0 ops" in page.locator("body").inner_text()


def test_the_failed_op_is_marked(page_of) -> None:
    assert "addmm" in page_of(partial()).locator("body").inner_text()


@pytest.mark.parametrize("size", [PHONE, DESKTOP, {"width": 820, "height": 1180}], ids=lambda size: str(size["width"]))
def test_nothing_is_wider_than_the_window(page_of, step: Graph, size: dict[str, int]) -> None:
    phone = size == PHONE
    page = page_of(step, viewport=size, is_mobile=phone, has_touch=phone, device_scale_factor=2 if phone else 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    box = page.locator("canvas").first.bounding_box()
    assert box["width"] >= (size["width"] - 20 if phone else 0.4 * size["width"])
    assert box["height"] >= 200


def test_it_prints_the_graph(page_of, step: Graph) -> None:
    page = page_of(step)
    page.emulate_media(media="print")
    assert page.locator("canvas").first.is_visible()
    assert not page.get_by_role("button", name="fit").is_visible()
    assert page.pdf()[:5] == b"%PDF-"


def test_where_scripts_are_off_there_is_a_picture_and_a_sentence(page_of, step: Graph) -> None:
    page = page_of(step, ready=None, java_script_enabled=False)
    picture = page.locator("img")
    assert picture.is_visible()
    assert picture.bounding_box()["width"] > 300
    assert "scripts are off" in page.locator("body").inner_text()


DENIED = """
for (const name of ["localStorage", "sessionStorage", "indexedDB"])
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
const context = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return kind === "2d" ? context.call(this, kind, ...rest) : null;
};
delete window.Worker;
"""


def test_it_needs_no_storage_no_webgl_and_no_worker(page_of, step: Graph) -> None:
    page = page_of(step, script=DENIED)
    page.get_by_role("button", name="light or dark").click()
    page.reload()
    assert page.get_by_role("tree").is_visible()


def test_the_policy_of_the_page_is_in_force(browser, step: Graph, tmp_path: Path) -> None:
    path = step.save(tmp_path / "step.html")
    text = path.read_text("utf-8")
    assert text.index("Content-Security-Policy") < text.index("<script")
    marked = tmp_path / "marked.html"
    injected = "<script>document.title = 'injected'</script><img src='x' onerror='document.title = 1'></body>"
    marked.write_text(text.replace("</body>", injected), "utf-8")
    visit = Visit.to(browser, marked)
    assert visit.wait_until_ready() == "yes"
    refused = visit.page.evaluate(
        """async () => {
          const refused = [];
          addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
          await fetch("https://example.invalid/").catch(() => 0);
          const image = document.createElement("img");
          image.src = "https://example.invalid/x.png";
          document.body.append(image);
          const frame = document.createElement("iframe");
          frame.src = "https://example.invalid/";
          document.body.append(frame);
          const style = document.createElement("style");
          style.textContent = "body { display: none }";
          document.body.append(style);
          await new Promise((done) => setTimeout(done, 100));
          return refused;
        }"""
    )
    assert {"connect-src", "img-src", "frame-src", "style-src-elem"} <= set(refused)
    assert visit.page.title() == "Network"
    visit.close()

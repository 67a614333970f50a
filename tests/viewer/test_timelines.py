"""The panes below the graph, in Chromium: memory, time, roofline and table show what Python says, and act as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.graph import Graph
from torchatlas.render.viewer.document import document
from torchatlas.render.viewer.html_page import PageDocument, page
from torchatlas.units import format_bytes

MEMORY = """() => {
  const memory = torchatlas.app.graph.keep("memory", () => null);
  const timeline = Object.fromEntries([...memory.timeline].map(([key, row]) => [key, [...row]]));
  return {peak: memory.peakBytes, node: memory.peakNode, timeline};
}"""


def training_step(**options: Any) -> Graph:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return atlas.capture(
        model, torch.randn(8, 16), backward=True, loss=lambda out: out.square().mean(), optimizer=optimizer, **options
    )


def loop() -> Graph:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with atlas.recording(model) as recorder:
        for _ in range(3):
            batch = torch.ones(4, 8)
            model(batch).relu().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.graph


def resized() -> Graph:
    with atlas.recording() as recorder:
        held = torch.ones(64)
        held.untyped_storage().resize_(16)
        held.untyped_storage().resize_(1024)
        torch.ones(8).add_(1)
    return recorder.graph


def forward_only() -> Graph:
    return atlas.capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(1, 3, 8, 8))


def part() -> Graph:
    """What its storages hold is less than what the recording counted."""
    graph = training_step()
    return graph.subgraph(nodes=range(4, 20))


def shown(page: Any, pane: str) -> None:
    page.evaluate("pane => torchatlas.app.store.update({pane})", pane)
    page.wait_for_selector(".when-seen > *")
    page.wait_for_timeout(100)


def selection(page: Any) -> Any:
    return page.evaluate("torchatlas.app.state.selection")


def name_of(page: Any, node: int) -> str:
    return page.evaluate("node => torchatlas.app.graph.nodeName(node)", node)


@pytest.mark.parametrize("make", [training_step, loop, resized, forward_only, part])
def test_memory_is_that_of_the_report(page_of, make) -> None:
    graph = make()
    report = atlas.memory(graph)
    page = page_of(graph)
    shown(page, "memory")
    found = page.evaluate(MEMORY)
    assert found["peak"] == graph.peak_bytes == report.peak_bytes
    assert found["node"] == report.node.id
    zeros = np.zeros(len(graph), int).tolist()
    assert {key: found["timeline"].get(key, zeros) for key in report.timeline} == {
        key: row.tolist() for key, row in report.timeline.items()
    }
    words = page.locator(".chart-pane .headline").inner_text()
    assert format_bytes(graph.peak_bytes) in words
    assert report.node.name in words


def test_a_moment_shows_what_is_alive_and_a_click_where_it_was_made(page_of) -> None:
    graph = training_step()
    page = page_of(graph)
    shown(page, "memory")
    moment = next(node.id for node in graph.nodes if node.operation == "aten.relu.default")
    page.evaluate("moment => torchatlas.app.store.update({moment})", moment)
    page.wait_for_timeout(100)
    rows = page.locator(".alive-row")
    alive = atlas.memory(graph).storages
    held = np.where(alive.alive_at(moment), alive.bytes_at(moment), 0)
    assert rows.count() == alive.alive_at(moment).sum()
    assert rows.first.locator(".alive-bytes").inner_text() == format_bytes(int(held.max()))
    sizes = [int(held[int(row.get_attribute("data-storage"))]) for row in rows.all()]
    assert sizes == sorted(sizes, reverse=True)
    page.locator(".alive-row", has_text="relu").first.click()
    assert selection(page) == {"kind": "node", "node": moment}
    assert name_of(page, moment) in page.locator("div.details").inner_text()
    # a category lists its own only
    page.locator(".category", has_text="parameters").click()
    assert rows.count() == 4
    assert "0.weight" in page.locator(".alive").inner_text()


def test_zooming_one_timeline_zooms_the_other_and_the_keyboard_moves_the_moment(page_of) -> None:
    page = page_of(training_step())
    shown(page, "memory")
    box = page.locator(".chart canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(100)
    span = page.evaluate("torchatlas.app.state.span")
    nodes = page.evaluate("torchatlas.app.graph.count")
    assert span[1] - span[0] < 0.5 * nodes
    assert page.evaluate("torchatlas.app.state.hover.kind") == "node"
    page.mouse.down()
    page.mouse.up()
    moment = page.evaluate("torchatlas.app.state.moment")
    assert span[0] <= moment <= span[1]
    shown(page, "time")
    assert page.evaluate("torchatlas.app.state.span") == span
    page.locator(".chart canvas").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("torchatlas.app.state.moment") == moment + 1
    page.keyboard.press("Enter")
    assert selection(page) == {"kind": "node", "node": moment + 1}
    page.keyboard.press("0")
    assert page.evaluate("torchatlas.app.state.span") is None


def test_the_execution_timeline_selects_modules_and_ops(page_of) -> None:
    page = page_of(training_step(repeat=2))
    shown(page, "time")
    assert "median of 2" in page.locator(".chart-head").inner_text()
    page.locator(".chart-controls button", has_text="order").click()
    box = page.locator(".chart canvas").bounding_box()
    page.mouse.click(box["x"] + 100, box["y"] + 45)  # the first lane
    page.wait_for_timeout(100)
    found = selection(page)
    assert found["kind"] == "group"
    assert page.evaluate("torchatlas.app.itemOf(torchatlas.app.state.selection).title") == "forward"


def test_without_times_the_panes_say_so(page_of) -> None:
    page = page_of(training_step(fake=True))
    shown(page, "time")
    assert "Nothing was timed" in page.locator(".chart-head").inner_text()
    assert page.locator(".chart-controls .toggles").count() == 0
    shown(page, "roofline")
    assert "Nothing was timed" in page.locator(".chart-head").inner_text()
    shown(page, "table")
    assert "time" not in page.locator(".table-head").inner_text()
    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2))
    graph.columns["node_memory_bytes"][:] = -1
    page = page_of(graph)
    page.evaluate("torchatlas.app.store.update({pane: 'memory'})")
    page.wait_for_timeout(100)
    assert "Memory was not followed" in page.locator("#bottom-pane").inner_text()


def test_a_dot_of_the_roofline_is_an_op(page_of) -> None:
    graph = training_step(repeat=2)
    page = page_of(graph)
    shown(page, "roofline")
    page.locator(".chart canvas").focus()
    page.keyboard.press("ArrowRight")  # the longest time
    page.keyboard.press("Enter")
    node = graph.nodes[selection(page)["node"]]
    words = page.locator(".tip").inner_text()
    assert node.operation in words
    assert node.name in words
    device = page.evaluate("torchatlas.app.graph.info.device")
    assert device["name"] in page.locator(".chart-head").inner_text()
    assert device["basis"] in page.locator(".chart-head").inner_text()


def test_tables_have_the_figures_of_python_and_select(page_of) -> None:
    graph = training_step(repeat=2)
    page = page_of(graph)
    shown(page, "table")
    found = page.evaluate("""() => [...document.querySelectorAll(".table-body .table-row")].map(
        row => [...row.children].map(cell => cell.textContent))""")
    scopes = {path: scope for path, scope in graph.scopes.items() if path}
    assert {row[0] for row in found} == set(scopes)
    assert {row[0]: row[2] for row in found} == {path: f"{scope.operations:,}" for path, scope in scopes.items()}
    times = [scopes[row[0]].time_ns for row in found]
    assert times == sorted(times, reverse=True)
    page.locator(".table-body .table-row", has_text="Linear").first.click()
    page.wait_for_timeout(100)
    path = page.locator(".table-row.selected").first.locator("div").first.inner_text()
    assert graph.scopes[path].type == "Linear"
    page.locator(".table-pane .toggles button", has_text="ops").click()
    page.get_by_label("filter rows").fill("relu forward")
    page.wait_for_timeout(100)
    names = page.locator(".table-body .table-row > div:first-child").all_inner_texts()
    assert names == [node.name for node in graph.nodes if "relu" in node.name and node.phase == "forward"]


def test_long_tables_have_few_elements(page_of) -> None:
    with atlas.recording() as recorder:
        total = torch.zeros(1)
        for _ in range(2_000):
            total = total + 1
    page = page_of(recorder.graph)
    shown(page, "table")
    rows = page.locator(".table-body .table-row")
    assert 0 < rows.count() < 60
    page.locator(".table-scroll").focus()
    page.keyboard.press("End")
    page.wait_for_timeout(150)
    last = rows.last
    assert last.get_attribute("aria-rowindex") == str(len(recorder.graph.where(kind="op")) + 1)
    page.keyboard.press("Enter")
    assert name_of(page, selection(page)["node"]) == last.locator("div").first.inner_text()


def test_two_fingers_zoom(page_of) -> None:
    page = page_of(training_step(), has_touch=True)
    shown(page, "memory")
    box = page.locator(".chart canvas").bounding_box()
    middle, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)
    for kind, apart in [("touchStart", 40), ("touchMove", 80), ("touchMove", 160), ("touchEnd", 0)]:
        points = [{"x": middle - apart, "y": y, "id": 0}, {"x": middle + apart, "y": y, "id": 1}] if apart else []
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.wait_for_timeout(100)
    low, high = page.evaluate("torchatlas.app.state.span")
    nodes = page.evaluate("torchatlas.app.graph.count")
    assert high - low == pytest.approx(nodes / 4, rel=0.1)
    assert (low + high) / 2 == pytest.approx(nodes / 2, rel=0.2)


def test_the_steps_of_a_run(page_of, tmp_path) -> None:
    columns = {"number": [10, 11, 12], "wall_ns": [10**6, 2 * 10**6, 10**6], "loss": [2.0, float("nan"), None]}
    given = {"columns": columns, "shown": 12, "changes": {11: "batch 8 -> <b>4</b>"}}
    path = tmp_path / "run.html"
    path.write_bytes(page([PageDocument("run", document(training_step(), steps=given))], title="run"))
    opened = page_of(path)
    shown(opened, "steps")
    words = opened.locator(".steps .headline")
    assert words.inner_text() == "step 12, one of 3 · 1.00 ms · the graph above is of this step"
    opened.locator(".chart canvas").focus()
    opened.keyboard.press("ArrowLeft")
    assert words.inner_text() == (
        "step 11, one of 3 · 2.00 ms · loss nan · its graph: run.graph(11).show()"
        " · another structure than before: batch 8 -> <b>4</b>"
    )
    box = opened.locator(".chart canvas").bounding_box()
    opened.mouse.click(box["x"] + 97, box["y"] + 20)
    assert words.inner_text().startswith("step 10, one of 3 · 1.00 ms · loss 2")

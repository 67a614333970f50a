"""Flame graphs: the total is the time of the ops; read, and written again, by the real speedscope in a browser."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from browser import Visit, chromium, unavailable
from support import tiny_gpt2
from synthetic import random_graph

import torchatlas as atlas
from torchatlas.export.timeline import timeline
from torchatlas.graph import Graph

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE = Path(__file__).parents[2] / "viewer" / "node_modules" / "speedscope" / "dist" / "release" / "index.html"


@pytest.fixture(scope="module")
def step() -> Graph:
    """A training step of GPT-2."""
    model, inputs = tiny_gpt2()
    return atlas.capture(model, kwargs=inputs, loss=lambda output: output.loss, optimizer=torch.optim.AdamW)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not PAGE.is_file():
        unavailable("speedscope is not installed (make viewer, or npm ci in viewer/)")
    with chromium() as found:
        yield found


def own_times(document: dict[str, Any], profile: dict[str, Any]) -> Counter[str]:
    """By frame the time that it has itself. Frames must open and close in order, and time must not go back."""
    found: Counter[str] = Counter()
    stack: list[int] = []
    at = profile["startValue"]
    for event in profile["events"]:
        assert event["at"] >= at
        if stack:
            found[document["shared"]["frames"][stack[-1]]["name"]] += event["at"] - at
        at = event["at"]
        if event["type"] == "O":
            stack.append(event["frame"])
        else:
            assert stack.pop() == event["frame"]
    assert not stack
    return found


def test_ops_have_all_the_time(step: Graph, tmp_path: Path) -> None:
    document = json.loads(step.save(tmp_path / "step.speedscope.json").read_bytes())
    (profile,) = document["profiles"]
    assert profile["endValue"] - profile["startValue"] == step.time_ns
    own = own_times(document, profile)
    assert own["aten::addmm"] == sum(node.time_ns or 0 for node in step.where(operation="addmm"))
    assert not any(own[scope.path] for scope in step.scopes.values() if scope.path)
    assert "one run" in profile["name"]
    assert "end to end" in profile["name"]


def test_gaps_can_be_kept(step: Graph, tmp_path: Path) -> None:
    document = json.loads(step.save(tmp_path / "step.speedscope.json", gaps=True).read_bytes())
    own = own_times(document, document["profiles"][0])
    assert own["aten::addmm"] == sum(node.time_ns or 0 for node in step.where(operation="addmm"))
    assert sum(own.values()) > (step.time_ns or 0)


def test_each_thread_and_rank_is_a_profile(tmp_path: Path) -> None:
    graphs = [random_graph(400, 800, seed) for seed in (1, 2)]
    atlas.save_ranks(graphs, tmp_path / "all.speedscope.json")
    document = json.loads((tmp_path / "all.speedscope.json").read_bytes())
    lines = [timeline(graph) for graph in graphs]
    assert len(document["profiles"]) == sum(len(line.lanes) for line in lines)
    assert len(document["profiles"]) > 2
    total = sum(sum(own_times(document, profile).values()) for profile in document["profiles"])
    assert total == sum(int(line.time_ns.sum()) for line in lines)


def test_speedscope_reads_both_and_finds_the_same_time(step: Graph, browser: Browser, tmp_path: Path) -> None:
    for name in ("step.speedscope.json", "step.trace.json"):
        visit = Visit.to(browser, PAGE)
        visit.page.set_input_files("input[type=file]", step.save(tmp_path / name))
        visit.page.get_by_text("Sandwich").wait_for()
        with visit.page.expect_download() as download:  # what its importer made of the file
            visit.page.keyboard.press("Control+s")
        document = json.loads(Path(download.value.path()).read_bytes())
        visit.close()
        assert not visit.errors
        (profile,) = document["profiles"]
        unit = {"nanoseconds": 1, "microseconds": 1000}[profile["unit"]]
        own = own_times(document, profile)
        ops = sum(ns for frame, ns in own.items() if frame.startswith("aten::"))
        assert round(ops * unit) == step.time_ns
        assert sum(frame["name"].startswith("aten::") for frame in document["shared"]["frames"]) > 50

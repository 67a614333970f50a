"""Law 12: whatever shows a time says what it is: one run, or the median of n with its spread."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.cost import cost_text
from torchatlas.analysis.critical_path import critical_path
from torchatlas.analysis.totals import operations_mask, run_times, summarize
from torchatlas.export.model_explorer import graph_facts, graph_nodes
from torchatlas.graph.timing import Measured, Timing
from torchatlas.render.module_table import module_bars, module_table
from torchatlas.render.text import summary_text

ROOT = Path(atlas.__file__).parent


def captured(runs: int) -> atlas.Graph:
    """A training step with times that were fed in: 3 µs for each operation, of several runs ± 10 %."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    graph = atlas.capture(model, torch.ones(4, 8), backward=True)
    is_op = operations_mask(graph)
    graph.columns["node_time_ns"][is_op] = 3000
    graph.columns["node_time_spread_ns"][is_op] = 300 if runs > 1 else -1
    eager_ns = (400_000,) * runs if runs > 1 else ()
    graph.timing = Timing(runs=runs, warmup=2, recorded_ns=(900_000,) * runs, eager_ns=eager_ns)
    return graph


def in_model_explorer(graph: atlas.Graph) -> str:
    return str([*graph_nodes(graph), graph_facts(graph)])


def partitioned(graph: atlas.Graph) -> str:
    return str(atlas.ConcurrencyAnalyzer(by="time").analyze(atlas.GraphPartitioner().partition(graph)))


VIEWS: dict[str, Callable[[atlas.Graph], str]] = {
    "summary": summary_text,
    "summary as a dictionary": lambda graph: str(summarize(graph)["times"]),
    "notebook": lambda graph: graph._repr_html_(),
    "table": lambda graph: str(module_table(graph)),
    "table in a notebook": lambda graph: module_table(graph)._repr_html_(),
    "bars": lambda graph: str(module_bars(graph, "time")),
    "picture": lambda graph: atlas.draw(graph).svg,
    "picture of a phase": lambda graph: atlas.draw(graph, phases=["backward"]).svg,
    "coloured picture": lambda graph: atlas.draw(graph, color_by="time", legend=True).svg,
    "plot of time": lambda graph: atlas.plot(graph, "time").svg,
    "roofline": lambda graph: atlas.plot(graph, "roofline").svg,
    "cost": lambda graph: cost_text(atlas.cost(graph, "a100-80gb")),
    "memory": lambda graph: str(atlas.memory(graph)),
    "critical path": lambda graph: str(critical_path(graph, "time")),
    "concurrency": partitioned,
    "comparison": lambda graph: str(atlas.compare(graph, graph)),
    "comparison in a notebook": lambda graph: atlas.compare(graph, graph)._repr_html_(),
    "Model Explorer": in_model_explorer,
    "module in a notebook": lambda graph: graph.scopes["0"]._repr_html_(),
    "node in a notebook": lambda graph: graph.where(kind="op")[0]._repr_html_(),
}
every_view = pytest.mark.parametrize("view", [pytest.param(view, id=name) for name, view in VIEWS.items()])


@every_view
def test_whatever_shows_a_time_says_what_it_is(view: Callable[[atlas.Graph], str]) -> None:
    once, often = view(captured(1)), view(captured(10))
    assert "one run" in once
    assert "median" not in once
    assert re.search(r"median of 10 ± 10 %|by medians of 10", often)
    assert "one run" not in often


def test_the_scale_of_colours_says_it_too() -> None:
    assert ">time (one run)<" in atlas.draw(captured(1), color_by="time", legend=True).svg
    assert ">time (median of 10 ± 10 %)<" in atlas.draw(captured(10), color_by="time", legend=True).svg


def test_backward_is_one_run() -> None:
    run = atlas.record_backward(nn.Linear(2, 1)(torch.ones(1, 2)).sum())
    assert "(one run)" in str(run)


# What turns a duration into text, and where the views above show what it is. A new one belongs there, too.
SHOWN = {
    "analysis/checkpoint_choice.py": "best times of a device, none measured",
    "analysis/fail_on.py": "a condition on a time shows Measured",
    "analysis/cost.py": "cost",
    "analysis/diff.py": "comparison",
    "analysis/memory_text.py": "memory",
    "analysis/critical_path.py": "critical path",
    "analysis/totals.py": "summary as a dictionary",
    "analysis/time_changes.py": "comparison",
    "autograd/record_backward.py": "test_backward_is_one_run",
    "cli/run.py": "says (one run) itself",
    "export/profile_join.py": "says (one run) itself",
    "graph/item_sections.py": "node, module and list of nodes in a notebook",
    "graph/objects.py": "list of nodes in a notebook",
    "graph/shown.py": "fields of parts of reports, which say what they are",
    "graph/timing.py": "Measured",
    "integrations/training_report.py": "the head of its column says one step, or the median of all",
    "partition/concurrency.py": "concurrency",
    "partition/stages.py": "best times of a device, none measured",
    "partition/report.py": "best times of a device, none measured",
    "pipeline/launch.py": "a time-out",
    "pipeline/pipeline_run.py": "says (one run) itself",
    "pipeline/schedules.py": "a part of a pipeline's run, which says so",
    "render/color_by.py": "coloured picture",
    "render/module_cells.py": "table",
    "render/graph_html.py": "notebook",
    "render/scene_painter.py": "picture",
    "render/plots.py": "plot of time",
    "render/roofline.py": "roofline",
    "render/text.py": "summary",
    "runs/plots.py": "a step of a run, timed once, or the median of all",
    "runs/run.py": "a step of a run, timed once, or the median of all",
    "runs/step_table.py": "a step of a run, timed once",
    "units.py": "",
}


def test_no_other_file_writes_durations() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if re.search(r"format_(ns|seconds)", path.read_text())
    }
    assert found == set(SHOWN)


def test_a_total_says_what_is_in_it_and_the_cost_of_recording_is_not_the_programs() -> None:
    operations = int(operations_mask(captured(1)).sum()) * 3
    assert str(run_times(captured(1))) == f"{operations}.0 µs in operations, 900 µs while recording (one run)"
    assert str(run_times(captured(10))) == (
        f"{operations}.0 µs in operations (median of 10 ± 10 %), 400 µs eager (median of 10 ± 0 %), "
        "900 µs while recording (median of 10 ± 0 %)"
    )
    part = captured(10)
    part.columns["node_time_ns"][operations_mask(part).nonzero()[0][0]] = -1
    assert str(run_times(part)).startswith("at least ")


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], None),
        ([7], Measured(7)),
        ([10, 20], Measured(15, 2, 5)),
        ([1, 2, 3, 4, 100], Measured(3, 5, 2)),
    ],
)
def test_the_spread_is_the_interquartile_range(samples: list[int], expected: Measured | None) -> None:
    assert Measured.of(samples) == expected


def test_files_keep_what_the_times_are(tmp_path: Path) -> None:
    graph = captured(10)
    for suffix in ("json", "atlas"):
        loaded = atlas.load(graph.save(tmp_path / f"graph.{suffix}"))
        assert loaded.identical(graph)
        assert (loaded.timing, loaded.measured()) == (graph.timing, graph.measured())
        graph.timing = Timing(runs=10)
        assert not loaded.identical(graph)
        graph.timing = loaded.timing
    assert loaded.hash == captured(1).hash

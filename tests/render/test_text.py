"""Summaries for people: readable, folded, adding up, and never obeying what a name says."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import children
import pytest
import torch
from render.models import HOSTILE, Layers
from render.reading import Tags
from synthetic import random_graph
from torch import nn

import torchatlas as atlas
import torchatlas.render  # adds the notebook view
from torchatlas import demo
from torchatlas.graph import Graph
from torchatlas.graph.timing import Timing
from torchatlas.render.graph_html import graph_html
from torchatlas.render.module_table import ModuleRow, module_table
from torchatlas.render.text import summary_text

GOLDEN = Path(__file__).parent / "golden"
OVERWRITE = "TORCHATLAS_OVERWRITE_GOLDEN" in os.environ


class Wide(nn.Module):
    """More different layers than anybody wants to read."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            setattr(self, f"part{number}", nn.Linear(2, 2 + number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.children()], dim=1)


def steady(graph: Graph) -> Graph:
    """The same graph with lines and times, as if of ten runs, that do not change."""
    columns = graph.columns["node_time_ns"]
    columns[columns >= 0] = range(1000, 1000 * (int((columns >= 0).sum()) + 1), 1000)
    graph.columns["node_time_spread_ns"] = columns // 20  # -1 stays
    eager_ns = tuple(range(640_000_000, 650_000_000, 1_000_000))
    graph.timing = Timing(runs=10, warmup=2, recorded_ns=tuple(2 * ns for ns in eager_ns), eager_ns=eager_ns)
    graph.tables.sources = [replace(source, file="/home/me/model.py", line=7) for source in graph.tables.sources]
    return graph


def hostile() -> Graph:
    graph = random_graph(300, 500)
    tables = graph.tables
    tables.modules = [replace(module, type=HOSTILE) for module in tables.modules]
    tables.operations = [replace(operation, name=f"my.{HOSTILE}.default") for operation in tables.operations]
    tables.names = [name + HOSTILE for name in tables.names]
    tables.sources = [replace(source, file=HOSTILE) for source in tables.sources]
    graph.notes.append(HOSTILE)
    graph.metadata["torch"] = HOSTILE
    return graph


def outline(graph: Graph, rows: int = 60) -> tuple[ModuleRow, ...]:
    """The rows of modules in a summary."""
    return module_table(graph, rows=rows).rows


def many_graphs() -> dict[str, Graph]:
    return {
        "empty": Graph(),
        "demo": demo.training_step(),
        "synthetic": random_graph(2000, 3000),
        "hostile": hostile(),
        "wide": atlas.capture(Wide(150), torch.randn(1, 2)),
        "function": atlas.capture(lambda x: x.relu(), torch.randn(2)),
        "modules": atlas.capture(Layers(3), torch.randn(2, 4), track_tensor_ops=False),
    }


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return many_graphs()


def test_the_demo_reads_as_agreed() -> None:
    text = summary_text(steady(demo.training_step()))
    text = text.replace(f"torch {torch.__version__.partition('+')[0]}", "torch 2.13.0")  # the only difference
    golden = GOLDEN / "demo.txt"
    if OVERWRITE:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "set TORCHATLAS_OVERWRITE_GOLDEN=1 if this is meant to be"


@pytest.mark.parametrize("width", [60, 100, 160])
def test_no_line_is_too_long_and_none_ends_in_blanks(graphs: dict[str, Graph], width: int) -> None:
    for name, graph in graphs.items():
        for line in summary_text(graph, width=width).splitlines():
            assert len(line) <= width, (name, line)
            assert line == line.rstrip(), name


def test_figures_are_never_cut(graphs: dict[str, Graph]) -> None:
    for width in (50, 60, 80, 100):
        text = summary_text(graphs["demo"], width=width)
        for row in outline(graphs["demo"]):
            line = rf"^ *{re.escape(row.label[:4])}.* {row.operations:,}( |$)"
            assert re.search(line, text, re.MULTILINE), (width, row)


def test_an_empty_graph_says_so() -> None:
    assert "nothing was recorded" in summary_text(Graph())
    assert "0 nodes" in Graph()._repr_html_()


def test_layers_that_are_alike_are_one_row() -> None:
    graph = atlas.capture(Layers(12), torch.randn(2, 4), backward=True)
    rows = {row.label: row for row in outline(graph)}
    assert "layers.0 .. layers.11" not in rows  # the first layer has no gradient to hand on: fewer operations
    folded = rows["1 .. 11"]
    assert folded.count == folded.calls == 11
    assert folded.operations == sum(graph.scopes[f"layers.{n}"].operations for n in range(1, 12))
    assert folded.total.time_ns == sum(graph.scopes[f"layers.{n}"].time_ns or 0 for n in range(1, 12))
    assert folded.total.parameters == 11 * 20
    assert "    1 .. 11  ×11 " in summary_text(graph)
    forward = summary_text(atlas.capture(Layers(12), torch.randn(2, 4)))
    assert "layers.0 .. layers.11  ×12" in forward


def test_a_layer_with_other_counts_keeps_its_row() -> None:
    text = summary_text(atlas.capture(Layers(5, twice=2), torch.randn(2, 4)))
    assert "0 .. 1  ×2" in text
    assert "3 .. 4  ×2" in text
    assert re.search(r"^    2 +Sequential +2 ", text, re.MULTILINE)


def test_lists_in_layers_keep_their_numbers() -> None:
    class Lists(Layers):
        def __init__(self) -> None:
            super().__init__(0)
            self.layers = nn.ModuleList(nn.ModuleDict({"block": nn.Linear(4, 4)}) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer["block"](x)  # type: ignore[index]
            return x

    assert "layers.0.block .. layers.2.block  ×3 " in summary_text(atlas.capture(Lists(), torch.randn(2, 4)))


def test_the_first_row_is_the_whole_graph(graphs: dict[str, Graph]) -> None:
    for name, graph in graphs.items():
        total = outline(graph)[0]
        sizes = graph.columns["storage_bytes"][graph.columns["storage_born"] >= 0]
        assert total.operations == len(graph.where(kind="op")), name
        assert total.total.time_ns == (sum(n.time_ns or 0 for n in graph.where(kind="op")) or None), name
        assert (total.total.allocated_bytes or 0) == sizes[sizes > 0].sum(), name
        assert total.total.unsized == (sizes < 0).sum(), name


def test_rows_sum_what_they_stand_for() -> None:
    graph = demo.training_step()
    rows = outline(graph)
    top = [row for row in rows if row.depth == 1]
    root = graph.scopes[""]
    assert sum(row.operations for row in top) + root.own_operations == root.operations
    assert sum(row.total.time_ns or 0 for row in top) + (root.own_time_ns or 0) == root.time_ns
    assert (
        sum(row.total.parameters for row in top)
        == root.parameters
        == sum(p.numel() for p in demo.TinyGPT().parameters())
    )


def test_long_lists_end_in_a_row_for_the_rest() -> None:
    graph = atlas.capture(Wide(150), torch.randn(1, 2))
    rows = outline(graph, rows=30)
    assert len(rows) == 31
    assert rows[-1].label == "… and 121 more"
    assert sum(row.operations for row in rows[1:]) == sum(s.operations for s in graph.scopes[""].children)
    assert "… and 91 more" in summary_text(graph)


def test_depth_hides_and_says_how_much(graphs: dict[str, Graph]) -> None:
    text = summary_text(graphs["demo"], depth=1)
    assert "attention" not in text.partition("slowest")[0]
    assert "×4  +36" in text
    assert "a greater depth shows them" in text
    assert len(module_table(graphs["demo"], 0).rows) == 1


def test_unknown_time_is_not_zero() -> None:
    graph = demo.training_step()
    graph.columns["node_time_ns"][:] = -1
    text = summary_text(graph)
    assert "nothing was timed" in text
    assert "slowest" not in text
    assert "share" not in text.partition("module  ")[2]
    assert "0 ns" not in text
    partly = demo.training_step()
    partly.columns["node_time_ns"][::2] = -1
    assert "≥ " in summary_text(partly)
    assert "at least" in summary_text(partly)


def test_untracked_memory_is_not_zero() -> None:
    graph = demo.training_step()
    graph.columns["node_memory_bytes"][:] = -1
    text = summary_text(graph)
    assert "memory: unknown (memory was not tracked)" in text
    assert "allocated" not in text.partition("note:")[0]


def test_names_are_text_and_nothing_else() -> None:
    text = summary_text(hostile(), width=400)
    lines = text.splitlines()
    title, module, operation, note = (
        next(line for line in lines if line.startswith(start))
        for start in ("Graph of", "  optimizer ", "layers.11.block.", "note: [")
    )
    for line in (title, module, operation, note):
        assert "[bold red]Evil[/]" in line
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text


def test_the_tables_of_a_notebook_are_escaped_closed_and_small(graphs: dict[str, Graph]) -> None:
    for name, graph in graphs.items():
        page = graph_html(graph)
        tags = Tags()
        tags.feed(page)
        assert not tags.open, name
        assert tags.seen <= {"div", "b", "table", "tr", "th", "td", "details", "summary"}, name
        assert len(page) < 60_000, name
        assert "http" not in page
    tags = Tags()
    tags.feed(graph_html(graphs["hostile"]))
    assert "<script>alert(1)</script>" in tags.text
    tags.feed(graph_html(graphs["demo"]))
    assert "blocks.0 .. blocks.3" in tags.text


def test_the_view_is_there_without_torch_or_rich() -> None:
    program = (
        "import sys, torchatlas.render; from torchatlas import Graph; Graph()._repr_html_();"
        "assert not {'torch', 'rich', 'click'} & set(sys.modules), 'too much was imported'"
    )
    children.python(program)

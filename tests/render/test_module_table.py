"""Module tables and bars: right shapes, columns that add up, text that fits, and names that are only text."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from render.models import HOSTILE, Layers
from render.reading import Tags
from rich.cells import cell_len
from rich.console import Console
from support import tiny_gpt2
from synthetic import random_graph
from torch import nn
from zoo import ZOO, Specimen, tensors_in

import torchatlas as atlas
from torchatlas import demo
from torchatlas.analysis.cost import cost
from torchatlas.analysis.memory import memory
from torchatlas.errors import AnalysisError, InvalidInputError, MissingDependencyError
from torchatlas.graph import Graph, Module
from torchatlas.graph.timing import Timing
from torchatlas.render.bars import bar
from torchatlas.render.module_table import Figures, ModuleRow, ModuleTable, module_bars, module_table, sum_of

GOLDEN = Path(__file__).parent / "golden"
OVERWRITE = "TORCHATLAS_OVERWRITE_GOLDEN" in os.environ
every_specimen = pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)


class Wide(nn.Module):
    """More different layers than anybody wants to read."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            setattr(self, f"part{number}", nn.Sequential(nn.Linear(2, 2 + number)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.children()], dim=1)


class Tuples(nn.Module):
    """An LSTM of which everything is used, a Dropout that does nothing, a Linear that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.dropout, self.unused = nn.LSTM(3, 4), nn.Dropout(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, (hidden, cell) = self.lstm(x)
        return self.dropout(out) + 1, hidden + cell


def steady(graph: Graph) -> Graph:
    """The same graph with times that do not change from run to run."""
    columns = graph.columns["node_time_ns"]
    columns[columns >= 0] = range(1000, 1000 * (int((columns >= 0).sum()) + 1), 1000)
    graph.timing = Timing(recorded_ns=(987_000_000,))
    return graph


def hostile() -> Graph:
    graph = random_graph(300, 500)
    tables = graph.tables
    tables.modules = [replace(one, path=one.path and f"{one.path}{HOSTILE}", type=HOSTILE) for one in tables.modules]
    tables.layouts = [replace(one, shape=(HOSTILE, *one.shape)) for one in tables.layouts]
    graph.notes.append(HOSTILE)
    return graph


def named(*names: str) -> Graph:
    """A graph with modules of these names."""
    graph = atlas.capture(nn.Sequential(*(nn.Linear(4, 4 + number % 2) for number in range(1))), torch.randn(2, 4))
    graph.tables.modules = [graph.tables.modules[0], *(Module(name, name) for name in names)]
    return Graph(graph.columns, graph.tables)


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    partly = demo.training_step()
    partly.columns["node_time_ns"][::2] = -1
    return {
        "empty": Graph(),
        "demo": demo.training_step(),
        "partly timed": partly,
        "synthetic": random_graph(2000, 3000),
        "hostile": hostile(),
        "wide": atlas.capture(Wide(150), torch.randn(1, 2)),
        "function": atlas.capture(lambda x: x.relu(), torch.randn(2)),
        "modules": atlas.capture(Layers(3), torch.randn(2, 4), track_tensor_ops=False),
        "long": named("n" * 10_000, "m" * 10_000 + ".0", "m" * 10_000 + ".1"),
        "wide characters": named("モデル" * 30, "エンコーダ", "e\N{COMBINING ACUTE ACCENT}" * 60, "❤️" * 50),
    }


def row_of(table: ModuleTable, path: str) -> ModuleRow:
    return next(row for row in table.rows if path in row.paths)


# -- golden ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table", "bars"])
def test_the_demo_reads_as_agreed(name: str) -> None:
    graph = steady(demo.training_step())
    shown = module_table(graph).to_text(120) if name == "table" else module_bars(graph, "time", 2).to_text(80)
    golden = GOLDEN / f"demo_{name}.txt"
    if OVERWRITE:
        golden.write_text(shown + "\n", encoding="utf-8")
    assert shown + "\n" == golden.read_text(encoding="utf-8"), (
        "set TORCHATLAS_OVERWRITE_GOLDEN=1 if this is meant to be"
    )


# -- sums: laws 1 and 2 ------------------------------------------------------------------------------------------------


def assert_sums(table: ModuleTable) -> None:
    """Rows below a row and its own figures give its figures, so that all own figures give the totals."""
    assert sum_of(row.own for row in table.rows) == table.totals
    for at, row in enumerate(table.rows):
        below = []
        for other in table.rows[at + 1 :]:
            if other.depth <= row.depth:
                break
            below += [other.total] if other.depth == row.depth + 1 else []
        assert sum_of([row.own, *below]) == row.total, row.label


@every_specimen
def test_rows_sum_to_totals_and_parameters_count_once(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    graph = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains)
    table = module_table(graph)
    for shown in (table, module_table(graph, 1), module_table(graph, fold=False, rows=None)):
        assert_sums(shown)
        assert shown.totals == table.totals
    report, totals = cost(graph), table.totals
    assert totals.macs == report.macs
    assert totals.forward_macs == report.by_phase["forward"].macs if "forward" in report.by_phase else True
    assert totals.uncosted == report.total.uncosted
    assert totals.time_ns == graph.time_ns
    if isinstance(model, nn.Module):
        model(*args, **kwargs)  # lazy modules have their parameters only now
        unique = {parameter.untyped_storage()._cdata: parameter.numel() for parameter in model.parameters()}
        assert totals.parameters == sum(unique.values())
    assert totals.trained is None or totals.trained <= totals.parameters


def test_rows_sum_at_every_depth_and_limit(graphs: dict[str, Graph]) -> None:
    for graph in graphs.values():
        whole = module_table(graph).totals
        for depth, rows in ((0, 200), (1, 5), (2, 200), (None, 7), (None, None)):
            table = module_table(graph, depth, rows=rows)
            assert_sums(table)
            assert table.totals == whole
            assert depth is None or all(row.depth <= depth for row in table.rows)


def test_modules_have_the_figures_of_other_reports() -> None:
    graph = demo.training_step()
    table, report = module_table(graph, fold=False), cost(graph)
    for row in table.rows:
        scope = graph.scopes[row.path]
        assert row.total.macs == report.by_module[row.path].macs if scope.operations else row.total.macs == 0
        assert (row.total.parameters, row.total.time_ns) == (scope.parameters, scope.time_ns)
        assert (row.calls, row.operations, row.type) == (scope.calls, scope.operations, scope.type)
    frame = memory(graph).to_pandas()
    saved = frame[(frame["category"] == "saved_activations") & frame["born"].notna()]
    assert table.totals.kept_bytes == saved["bytes"].sum() > 0
    assert table.totals.allocated_bytes == frame[frame["born"].notna()]["bytes"].sum()
    assert table.peak_bytes == graph.peak_bytes
    assert table.input_bytes == memory(graph).by_category["inputs"]


def test_tied_weights_count_once_and_frozen_ones_are_not_trained() -> None:
    model, kwargs = tiny_gpt2()
    model.transformer.wpe.weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    graph = atlas.capture(model, kwargs=kwargs, backward=True, loss=lambda out: out.loss)
    table = module_table(graph)
    assert table.totals.parameters == sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert table.totals.trained == trained < table.totals.parameters
    assert row_of(table, "lm_head").total.parameters == 0
    assert row_of(table, "transformer.wpe").total.trained == 0
    assert f"{trained:,} of them got a gradient" in table.to_text(100)
    assert "trained" in table.to_text(160)
    assert "gradient" not in module_table(atlas.capture(model, kwargs=kwargs)).to_text(160)


# -- output shapes -----------------------------------------------------------------------------------------------------


def hooked_shapes(model: nn.Module, args: Any, kwargs: Any) -> dict[str, list[tuple[int, ...]]]:
    """By module path what its first call returned, by torch's own hooks."""
    found: dict[str, list[tuple[int, ...]]] = {}
    hooks = []
    for path, module in model.named_modules():

        def saw(module: nn.Module, args: Any, result: Any, path: str = path) -> None:
            found.setdefault(path, [tuple(tensor.shape) for tensor in tensors_in(result)])

        hooks.append(module.register_forward_hook(saw))
    model(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("backward", [False, True])
def test_output_shapes_are_those_of_forward_hooks(backward: bool) -> None:
    model, kwargs = tiny_gpt2()
    shapes = hooked_shapes(model, (), kwargs)
    loss = {"loss": lambda out: out.loss} if backward else {}
    graph = atlas.capture(model, kwargs=kwargs, backward=backward, **loss)  # type: ignore[arg-type]
    checked = 0
    for row in module_table(graph, fold=False).rows:
        if row.operations and row.calls:
            assert row.outputs[0] in shapes[row.path], row.path
            checked += row.type in ("Conv1D", "LayerNorm", "GPT2Block", "GPT2Attention")
    assert checked >= 10


def test_outputs_of_tuples_of_silent_and_of_unused_modules() -> None:
    table = module_table(atlas.capture(Tuples().eval(), torch.randn(5, 2, 3)))
    assert row_of(table, "").outputs == ((5, 2, 4), (1, 2, 4))  # as returned
    assert sorted(row_of(table, "lstm").outputs) == [(1, 2, 4), (1, 2, 4), (5, 2, 4)]
    assert row_of(table, "dropout").outputs == row_of(table, "unused").outputs == ()
    assert row_of(table, "unused").total.parameters == 6
    text = table.to_text(120)
    assert re.search(r"^total +Tuples +\[5, 2, 4\] \+1 ", text, re.MULTILINE)
    assert re.search(r"^  unused +Linear +6$", text, re.MULTILINE)


def test_of_several_outputs_the_last_is_shown_and_backward_takes_none() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.values = nn.Linear(4, 2), nn.Linear(2, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            keys = self.keys(x)
            self.hidden = keys.repeat(1, 5)
            return self.values(self.hidden[:, :2]), keys

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, keys = self.inner(x)
            scaled = values * 2
            scaled.register_hook(lambda gradient: gradient + self.inner.hidden.sum())  # backward takes it outside
            result: torch.Tensor = scaled.sum() + keys.sum()
            return result

    graph = atlas.capture(Outer(), torch.randn(6, 4), backward=True)
    assert row_of(module_table(graph), "inner").outputs == ((6, 3), (6, 2))
    assert "[6, 3] +1" in module_table(graph).to_text(120)


def test_several_calls_show_the_first_and_how_many() -> None:
    class Shrinks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.MaxPool1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.pool(self.pool(x))
            return result

    row = row_of(module_table(atlas.capture(Shrinks(), torch.randn(1, 1, 16))), "pool")
    assert (row.outputs[0], row.calls) == ((1, 1, 8), 2)
    assert "[1, 1, 8] ×2" in module_table(atlas.capture(Shrinks(), torch.randn(1, 1, 16))).to_text(100)


def test_a_buffer_that_a_call_writes_is_no_output() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    with atlas.recording(model) as rec:
        for _ in range(2):
            model(torch.randn(4, 3))
    assert row_of(module_table(rec.graph), "0").outputs == ((4, 3),)


def test_an_output_nobody_takes_is_that_of_the_last_operation() -> None:
    with atlas.recording() as rec:
        nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5))(torch.randn(1, 2))
    shapes = {row.outputs[0] for row in module_table(rec.graph, fold=False).rows if row.outputs}
    assert (1, 5) in shapes


def test_module_calls_only_do_not_guess_what_containers_return() -> None:
    class Flattens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x)
            return result

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.linear(x).flatten()
            return result

    table = module_table(atlas.capture(Flattens(), torch.randn(2, 4), track_tensor_ops=False))
    assert row_of(table, "inner.linear").outputs == ((2, 4),)
    assert row_of(table, "inner").outputs == ()
    assert row_of(table, "").outputs == ((8,),)


# -- folding, depth, limits --------------------------------------------------------------------------------------------


def test_layers_that_are_alike_are_one_row() -> None:
    graph = atlas.capture(Layers(12), torch.randn(2, 4))
    row = module_table(graph).rows[1]
    assert (row.label, row.count, row.depth, row.path) == ("layers.0 .. layers.11", 12, 1, "layers.0")
    assert row.total.parameters == 12 * 20
    assert row.total.macs == 12 * 2 * 4 * 4
    assert "layers.0 .. layers.11  ×12" in module_table(graph).to_text(100)
    assert len(module_table(graph, fold=False).rows) == 2 + 12 * 3


def test_layers_with_other_calls_or_shapes_keep_their_rows() -> None:
    labels = [row.label for row in module_table(atlas.capture(Layers(5, twice=2), torch.randn(2, 4)), 2).rows]
    assert labels == ["total", "layers", "0 .. 1", "2", "3 .. 4"]
    pools = nn.Sequential(nn.MaxPool1d(2), nn.MaxPool1d(2))  # alike but for what they return
    assert [row.label for row in module_table(atlas.capture(pools, torch.randn(1, 1, 8))).rows] == ["total", "0", "1"]


def test_depth_rolls_up_and_says_how_much() -> None:
    graph = demo.training_step()
    table = module_table(graph, 1)
    blocks = row_of(table, "blocks.0")
    assert (blocks.hidden, blocks.own) == (36, blocks.total)
    assert "blocks.0 .. blocks.3  ×4  +36" in table.to_text(160)
    assert "a greater depth shows them" in table.to_text(160)
    assert len(module_table(graph, 0).rows) == 1


def test_long_lists_end_in_a_row_for_the_rest(graphs: dict[str, Graph]) -> None:
    rows = module_table(graphs["wide"], rows=30).rows
    assert len(rows) == 31
    assert (rows[-1].label, rows[-1].count, rows[-1].hidden, rows[-1].type) == ("… and 121 more", 121, 121, "")
    assert len(module_table(graphs["wide"], rows=None).rows) == 301


# -- unknown is never zero ---------------------------------------------------------------------------------------------


def test_unknown_time_and_memory_have_no_column() -> None:
    with atlas.recording(model := Layers(2), track_timing=False, track_memory=False) as rec:
        model(torch.randn(2, 4))
    table = module_table(rec.graph)
    assert (table.totals.time_ns, table.totals.allocated_bytes, table.totals.kept_bytes) == (None, None, None)
    assert (table.peak_bytes, table.totals.trained) == (None, None)
    text = table.to_text(160)
    assert not re.search(r"time:|time  |allocated|kept|peak|0 ns", text)
    assert "nothing was timed" in text
    with pytest.raises(AnalysisError, match=r"no time .* Draw macs or parameters instead\."):
        module_bars(rec.graph, "time")


def test_what_is_partly_known_is_at_least(graphs: dict[str, Graph]) -> None:
    text = module_table(graphs["partly timed"]).to_text(160)
    assert re.search(r"^total .* ≥ [\d.]+ .s ", text, re.MULTILINE)
    assert "operations were not timed: times with ≥ are at least that" in text
    graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4))
    graph.tables.operations = [
        replace(one, name="mine.relu.default") if "relu" in one.name else one for one in graph.tables.operations
    ]
    table = module_table(graph)
    assert (table.totals.macs, table.totals.uncosted) == (32, 1)
    assert row_of(table, "0").total.uncosted == 0
    assert re.search(r"^  1 +ReLU .* ≥ 0 ", table.to_text(120), re.MULTILINE)
    assert "MACs: ≥ 32" in table.to_text(120)
    assert "without a cost formula, so in no MACs: mine.relu.default (1)" in table.to_text(120)


def test_only_the_phase_that_has_unknown_macs_is_at_least() -> None:
    def without_formula(name: str) -> ModuleTable:
        graph = atlas.capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4), backward=True)
        graph.tables.operations = [
            replace(one, name="mine.x.default") if name in one.name else one for one in graph.tables.operations
        ]
        return module_table(graph)

    backward, forward = without_formula("threshold_backward"), without_formula("relu")
    assert (backward.totals.uncosted, backward.totals.forward_uncosted) == (1, 0)
    assert (forward.totals.uncosted, forward.totals.forward_uncosted) == (1, 1)
    assert "MACs: 32 forward, ≥ 64 in all phases" in backward.to_text(120)
    assert "MACs: ≥ 32 forward, ≥ 64 in all phases" in forward.to_text(120)


def test_allocations_of_unknown_size_are_at_least() -> None:
    table = module_table(atlas.capture(nn.Sequential(nn.LSTM(3, 4)), torch.empty(5, 2, 3, device="meta"), fake=True))
    assert row_of(table, "0").total.unsized == table.totals.unsized > 0
    assert re.search(r"^  0 +LSTM .* ≥ [\d.]+ ", table.to_text(120), re.MULTILINE)
    assert "peak memory: ≥ " in table.to_text(120)


def test_a_graph_that_cannot_be_costed_says_why() -> None:
    graph = random_graph(300, 500)  # has a symbolic size that nobody says
    table = module_table(graph)
    assert table.totals.macs is None
    assert "MACs  " not in table.to_text(160)
    assert any(note.startswith("no MACs: ") and "sizes=" in note for note in table.notes)
    with pytest.raises(AnalysisError, match="no macs to draw: no MACs: "):
        module_bars(graph, "macs")
    with pytest.raises(InvalidInputError, match="no symbolic size 'batch'"):
        module_table(graph, sizes={"batch": 3})


def test_an_empty_graph_and_a_plain_function(graphs: dict[str, Graph]) -> None:
    table = module_table(Graph())
    assert "nothing was recorded" in table.to_text(80)
    assert [row.label for row in table.rows] == ["total"]
    assert table.totals == Figures(macs=0, forward_macs=0)
    function = module_table(graphs["function"])
    assert function.rows[0].outputs == ((2,),)
    assert "type" not in function.to_text(80)
    assert "100.0 %" in module_bars(graphs["function"], "memory").to_text(80)
    assert "0.0 %" in module_bars(graphs["function"], "parameters").to_text(80)


# -- text that fits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [30, 60, 80, 100, 160])
def test_no_line_is_too_wide_and_none_ends_in_blanks(graphs: dict[str, Graph], width: int) -> None:
    for name, graph in graphs.items():
        texts = [module_table(graph).to_text(width), module_bars(graph, "parameters").to_text(width)]
        for line in "\n".join(texts).split("\n"):
            assert cell_len(line) <= width, (name, line)
            assert line == line.rstrip(), name


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_columns_end_in_the_same_place(graphs: dict[str, Graph], width: int) -> None:
    """Whatever the names: figures of the last column end where the rule above them ends."""
    for name, graph in graphs.items():
        lines = module_table(graph).to_text(width).split("\n")
        rule = next(at for at, line in enumerate(lines) if line.startswith("──"))
        rows = lines[rule + 1 : lines.index("", rule)]
        assert len(rows) == len(module_table(graph).rows), name
        ends = {cell_len(line) for line in rows if cell_len(line) > cell_len(lines[rule]) - 4}
        assert ends <= {cell_len(lines[rule])}, name
        assert cell_len(lines[rule - 1]) == cell_len(lines[rule]), name


def test_figures_are_never_cut(graphs: dict[str, Graph]) -> None:
    for width in (60, 80, 100, 160):
        for line in module_table(graphs["demo"]).to_text(width).split("\n\n")[1].splitlines()[2:]:
            assert "…" not in line[20:], (width, line)
    assert "kept" in module_table(graphs["demo"]).to_text(160)
    assert "output shape" in module_table(graphs["demo"]).to_text(80)


def test_the_terminal_sets_the_width(graphs: dict[str, Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, least, most in ((10, 30, 40), (80, 70, 80), (500, 100, 160)):
        monkeypatch.setenv("COLUMNS", str(columns))
        for shown in (module_table(graphs["demo"]), module_bars(graphs["demo"])):
            assert least <= max(map(cell_len, str(shown).split("\n"))) <= most


# -- bars --------------------------------------------------------------------------------------------------------------


def test_bars_are_shares_of_the_whole() -> None:
    graph = steady(demo.training_step())
    for by, name in {
        "time": "time_ns",
        "macs": "macs",
        "memory": "allocated_bytes",
        "parameters": "parameters",
    }.items():
        bars, table = module_bars(graph, by), module_table(graph)
        assert [row.amount for row in bars.rows] == [getattr(row.total, name) for row in table.rows]
        whole = bars.rows[0].amount or 0
        assert [row.share for row in bars.rows] == [
            (row.amount or 0) / whole for row in bars.rows if row.amount is not None
        ]
        lines = bars.to_text(100).split("\n")
        longest = max(line.count("█") for line in lines)
        assert lines[4].count("█") == longest == 40
    with pytest.raises(InvalidInputError, match="one of time, macs, memory, parameters"):
        module_bars(graph, "beauty")


def test_eighths() -> None:
    assert [bar(eighths / 16, 2) for eighths in (0, 1, 7, 8, 12, 16)] == ["", "▏", "▉", "█", "█▌", "██"]
    assert bar(1e-9, 10) == "▏"


# -- other forms -------------------------------------------------------------------------------------------------------


def test_html_is_escaped_closed_and_small(graphs: dict[str, Graph]) -> None:
    for name, graph in graphs.items():
        page, tags = module_table(graph)._repr_html_(), Tags()
        tags.feed(page)
        assert not tags.open, name
        assert tags.seen <= {"div", "b", "table", "tr", "th", "td"}, name
        assert tags.attributes <= {"style", "title", "cellpadding"}, name
        assert len(page) < 120_000, name
        assert "http" not in page
        assert not re.search("color:(?!inherit)", page), name  # the page's own colours
    tags = Tags()
    tags.feed(module_table(graphs["hostile"])._repr_html_())
    assert "<script>alert(1)</script>" in tags.text
    tags.feed(module_table(graphs["demo"])._repr_html_())
    assert "blocks.0 .. blocks.3" in tags.text


def test_names_are_text_and_nothing_else(graphs: dict[str, Graph]) -> None:
    console = Console(file=StringIO(), width=200, color_system=None)
    console.print(module_table(graphs["hostile"]))
    console.print(module_bars(graphs["hostile"], "memory"))
    assert isinstance(console.file, StringIO)
    shown = [console.file.getvalue(), module_table(graphs["hostile"]).to_text(200)]
    shown += [module_table(graphs["hostile"])._repr_html_(), module_bars(graphs["hostile"], "memory").to_text(200)]
    for text in shown:
        assert "[bold red]Evil[/]" in text
        assert "\x1b" not in text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text


@pytest.mark.parametrize("width", [60, 120])
def test_rich_shows_the_same_text_with_styles(graphs: dict[str, Graph], width: int) -> None:
    for shown in (module_table(graphs["demo"]), module_bars(graphs["demo"])):
        console = Console(file=StringIO(), width=width, color_system=None)
        console.print(shown)
        assert isinstance(console.file, StringIO)
        lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
        assert "\n".join(lines) == shown.to_text(width)
        coloured = Console(file=StringIO(), width=width, color_system="standard", force_terminal=True)
        coloured.print(shown)
        assert isinstance(coloured.file, StringIO)
        assert "\x1b[1m" in coloured.file.getvalue()


def test_json_and_pandas_hold_every_row(graphs: dict[str, Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    for graph in graphs.values():
        table = module_table(graph)
        found = json.loads(table.to_json())
        assert found == json.loads(json.dumps(table.as_dict()))
        assert [row["label"] for row in found["rows"]] == [row.label for row in table.rows]
        assert found["totals"] == found["rows"][0]["total"]
        frame = table.to_pandas()
        assert list(frame["path"]) == [row.path for row in table.rows]
        for one in fields(Figures):
            own = frame[f"own_{one.name}"]
            assert (int(own.sum()) if own.notna().any() else None) in (getattr(table.totals, one.name), 0)
        bars = module_bars(graph, "parameters")
        assert json.loads(bars.to_json())["rows"][0]["amount"] == table.totals.parameters
    frame = module_table(graphs["demo"]).to_pandas()
    assert frame["output_shape"][1] == "[4, 32, 64]"
    assert str(frame["macs"].dtype) == "Int64"
    assert frame["time_ns"].notna().all()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"torchatlas\[pandas\]"):
        module_table(graphs["demo"]).to_pandas()


def test_it_says_what_it_takes(graphs: dict[str, Graph]) -> None:
    with pytest.raises(InvalidInputError, match=r"takes a graph.*not Linear.*capture"):
        module_table(nn.Linear(2, 2))  # type: ignore[arg-type]
    for wrong in (-1, 1.5, True, "2"):
        with pytest.raises(InvalidInputError, match="depth="):
            module_table(graphs["demo"], wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="rows=0"):
        module_table(graphs["demo"], rows=0)


def test_a_large_graph_is_no_longer_than_a_screen_or_two() -> None:
    graph = random_graph(100_000, 150_000)
    table = module_table(graph)
    assert_sums(table)
    assert len(table.to_text(120).splitlines()) < 100
    assert table.rows[0].operations == len(graph) - 4


def test_gradients_that_nobody_saw_are_no_zeros() -> None:
    model = Layers(3)
    whole = module_table(atlas.capture(model, torch.randn(2, 4), backward=True))
    assert whole.totals.trained == whole.totals.parameters
    calls = module_table(atlas.capture(model, torch.randn(2, 4), backward=True, track_tensor_ops=False))
    behind = module_table(atlas.autograd_graph(model(torch.randn(2, 4)).sum(), model=model))
    for table in (calls, behind):
        assert table.totals.parameters == whole.totals.parameters
        assert (table.totals.trained, table.totals.kept_bytes) == (None, None)
        assert "trained" not in str(table)
        assert "gradient" not in str(table)
        assert "kept" not in str(table)


def test_half_a_surrogate_pair_in_a_name() -> None:
    model = nn.Module()
    model.add_module("bad\ud800name", nn.Linear(4, 4))
    model.forward = lambda x: getattr(model, "bad\ud800name")(x)  # type: ignore[method-assign]
    graph = atlas.capture(model, torch.randn(2, 4))
    assert module_table(graph).to_pandas()["path"].tolist() == ["", "bad\\ud800name"]
    assert "bad\\ud800name" in graph.to_pandas()["scope"].tolist()

"""Whatever a model or a file is called and says: no control character of it reaches a terminal, no formula a cell.

Public names are read from `torchatlas.__all__`: a new one is tested, or says here why it cannot be.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hostile import HOSTILE, MARK, NO_UNICODE, OURS, forbidden, hostile_graph, hostile_model

import torchatlas as atlas
from torchatlas import errors
from torchatlas.escapes import cell, clean, clean_text
from torchatlas.graph import Graph

ORDINARY = "Größe 大小 размер 😀 é ⁂ [red]"


# -- the function -----------------------------------------------------------------------------------------------------


def test_what_a_terminal_obeys_or_hides_is_shown() -> None:
    for character in [*map(chr, [*range(32), *range(0x7F, 0xA0)]), *NO_UNICODE]:
        assert not forbidden(clean(character))
        assert (clean(character) == character) is character.isprintable()


@pytest.mark.parametrize("code", [0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_direction_marks_are_shown(code: int) -> None:
    assert clean(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_ordinary_text_stays_and_cleaning_twice_changes_nothing() -> None:
    assert clean(ORDINARY) == ORDINARY
    assert clean(clean(HOSTILE)) == clean(HOSTILE)
    assert clean_text("a\nb\r\n\x1b") == "a\nb\\r\n\\x1b"


def test_long_texts_are_no_harder() -> None:
    """What grows with the square of the length would take hours."""
    assert len(clean("x" * 2_000_000 + "\x1b" + "大" * 2_000_000)) == 4_000_004


# -- errors -----------------------------------------------------------------------------------------------------------

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AtlasError)]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_messages_are_safe(kind: type[Exception]) -> None:
    shown = str(kind(f"no node {NO_UNICODE}\nnext line"))
    assert shown == f"no node {clean_text(NO_UNICODE)}\nnext line"


# -- public names -----------------------------------------------------------------------------------------------------

GRAPH = hostile_graph(NO_UNICODE)
COSTED = hostile_graph(NO_UNICODE, operations=False)


def _captured(batch: int) -> Graph:
    return atlas.capture(hostile_model()[0], torch.randn(batch, 4))


def _loss() -> torch.Tensor:
    model, example = hostile_model()
    return model(example).sum()


def _recorded_backward() -> Any:
    model, example = hostile_model()
    run = atlas.record_backward(model(example).sum(), params=dict(model.named_parameters()))
    return [run, run.graph, *run.graph.nodes]


def _debugged() -> Any:
    model, example = hostile_model()
    with atlas.debug_backward(model(example).sum(), params=dict(model.named_parameters())) as debugger:
        stop = debugger.step()
        return [repr(debugger), str(stop), repr(stop)]


def _printed() -> Any:
    file = io.StringIO()
    with redirect_stdout(file):
        shown = atlas.print_graph(_loss())
    return [file.getvalue(), str(shown)]


def _compared() -> Any:
    model, example = hostile_model()
    other, _ = hostile_model()
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    return atlas.compare_runs(atlas.trace(model, example), atlas.trace(other, example), example)


def _doctored() -> Any:
    model, example = hostile_model()
    with atlas.doctor(model=model) as visit:
        loss = (model(example) * torch.nan).sum()
        loss.backward()
    return [visit, visit.findings, *visit.findings]


def _partitions() -> Any:
    reports = [atlas.GraphPartitioner(strategy).partition(COSTED) for strategy in ("fusion", "op", "module")]
    return [*reports, *reports[0].subgraphs, *(atlas.ConcurrencyAnalyzer().analyze(report) for report in reports)]


def _joined() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        trace = GRAPH.save(Path(folder, "own.trace.json"))
        found = atlas.join_profile(COSTED, trace)
    return [found, *found.nodes]


def _watched() -> Any:
    model, example = hostile_model()
    optimizer = torch.optim.SGD(model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        with atlas.watch(optimizer, model, path=Path(folder, "run.atlas"), every=1) as watch:
            model(example).sum().backward()
            optimizer.step()
        return [watch, watch.report, watch.report.modules]


def _items() -> Any:
    parts = [GRAPH, *GRAPH.nodes, *GRAPH.edges, *GRAPH.values, *GRAPH.storages, *GRAPH.scopes.values()]
    parts += [node.arguments for node in GRAPH.nodes] + [node.source for node in GRAPH.nodes]
    return [*parts, *(node.attributes for node in GRAPH.nodes)]


# What is made with each public name, of a hostile graph or a hostile model: text is looked for in all of it.
MAKES: dict[str, Callable[[], Any]] = {
    "ComputationalGraphTracker": lambda: repr(atlas.ComputationalGraphTracker(hostile_model()[0])),
    "ConcurrencyAnalyzer": lambda: atlas.ConcurrencyAnalyzer().analyze(atlas.GraphPartitioner().partition(GRAPH)),
    "Graph": _items,
    "GraphEdge": lambda: list(GRAPH.edges),
    "GraphNode": lambda: list(GRAPH.nodes),
    "GraphPartitioner": _partitions,
    "TracedModel": lambda: atlas.TracedModel(hostile_model()[0], (hostile_model()[1],)),
    "analyze_computational_graph": lambda: atlas.analyze_computational_graph(*hostile_model()),
    "autograd_graph": lambda: [*(graph := atlas.autograd_graph(_loss())).nodes, graph],
    "capture": lambda: [*(graph := atlas.capture(*hostile_model())).nodes, graph, *graph.scopes.values()],
    "check_compatibility": lambda: atlas.check_compatibility(*hostile_model()),
    "checkpoint_plan": lambda: atlas.checkpoint_plan(*hostile_model(), limit=20_000),
    "compare": lambda: [found := atlas.compare(GRAPH, COSTED), *found.added, *found.removed, *found.changed],
    "compare_runs": _compared,
    "cost": lambda: [atlas.cost(GRAPH), atlas.cost(COSTED)],
    "debug_backward": _debugged,
    "doctor": _doctored,
    "draw": lambda: atlas.draw(GRAPH),
    "join_profile": _joined,
    "lifecycle": lambda: atlas.lifecycle(_loss()),
    "make_dot": lambda: atlas.make_dot(_loss()),
    "memory": lambda: [atlas.memory(GRAPH), atlas.memory(COSTED)],
    "module_bars": lambda: [atlas.module_bars(COSTED, by) for by in ("time", "macs", "memory", "parameters")],
    "module_table": lambda: [atlas.module_table(GRAPH), atlas.module_table(COSTED)],
    "peak_for_batch": lambda: atlas.peak_for_batch({batch: _captured(batch) for batch in (2, 3, 4)}),
    "pipeline_stages": lambda: atlas.pipeline_stages(COSTED, 2),
    "plot": lambda: [atlas.plot(COSTED, kind) for kind in ("memory", "roofline", "time")],
    "print_graph": _printed,
    "record_backward": _recorded_backward,
    "track_computational_graph": lambda: atlas.track_computational_graph(*hostile_model()),
    "trace": lambda: [traced := atlas.trace(*hostile_model()), *traced.graph.nodes],
    "watch": _watched,
    "verify": lambda: atlas.verify(atlas.capture(*hostile_model(), values="replay")),
}
WITHOUT_TEXT = {
    "AtlasError": "tested above, with all its kinds",
    "EdgeKind": "an enum of ours",
    "NodeKind": "an enum of ours",
    "OpCall": "what formulas are handed; its text is that of the arguments of a node",
    "OperationType": "an enum of ours",
    "Phase": "an enum of ours",
    "Role": "an enum of ours",
    "Work": "numbers",
    "errors": "a module; its classes are tested above",
    "formula": "a decorator",
    "from_fx": "a graph, as `capture` makes one",
    "gradient_norms": "a dictionary of names and numbers: Python writes names as it does",
    "load": "a graph, as `capture` makes one; its errors are in tests/cli/test_strangers.py",
    "recording": "a graph, as `capture` makes one",
    "recording_backward": "what `record_backward` returns",
    "register_operator": "returns nothing",
    "run_pipeline": "numbers, and the plan that `pipeline_stages` makes",
    "save_ranks": "paths",
    "view": "the path of a page, which is tested in tests/render/viewer/test_html_page.py",
}


def test_every_public_name_is_tested_or_says_why_not() -> None:
    assert {*MAKES, *WITHOUT_TEXT} == set(atlas.__all__)
    assert not set(MAKES) & set(WITHOUT_TEXT)


@pytest.mark.parametrize("name", MAKES)
def test_text_of_what_is_public_is_safe(name: str) -> None:
    made = MAKES[name]()
    texts = list(_texts(made))
    assert texts
    assert [(how, ascii(found), clean(text)[:300]) for how, text in texts if (found := forbidden(text))] == []


def test_names_can_still_be_recognised() -> None:
    for made in (GRAPH.nodes[1], atlas.memory(COSTED), atlas.module_table(GRAPH), *_partitions()[:1]):
        assert MARK in str(made)
    assert GRAPH.nodes[0].name.endswith(NO_UNICODE)  # as data it is exact


_OUR_PAGE = re.compile(r'srcdoc="[^"]*"')  # the viewer, whose script has tabs: tests/render/viewer/test_html_page.py
_METHODS = re.compile(r"_repr_\w+_|to_text|\w*summary|describe|text")


def _texts(made: Any) -> Iterator[tuple[str, str]]:
    """Every text for people that can be had of a thing: itself, str, repr, rich, and methods that make text of it."""
    if isinstance(made, str):
        yield "returned", made
    elif isinstance(made, (list, tuple)):
        for part in made:
            yield from _texts(part)
    elif made is not None:
        yield "str", str(made)
        yield "repr", repr(made)
        if hasattr(made, "__rich__") or hasattr(made, "__rich_console__"):
            yield "rich", _rich(made)
        for name in dir(type(made)):
            if _METHODS.fullmatch(name) and callable(method := getattr(made, name)):
                yield name, _OUR_PAGE.sub("", str(method()))


def _rich(made: Any) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=100)
    console.print(made)
    assert isinstance(console.file, io.StringIO)
    return OURS.sub("", console.file.getvalue())


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".dot", ".gv", ".mmd", ".svg"])
def test_pictures_and_their_sources_are_clean(suffix: str, tmp_path: Path) -> None:
    text = GRAPH.save(tmp_path / f"graph{suffix}").read_text("utf-8")
    assert not forbidden(text)
    assert MARK in text


@pytest.mark.parametrize("made", [atlas.draw(GRAPH), *MAKES["plot"]()], ids=["graph", "memory", "roofline", "time"])
def test_pictures_are_well_formed(made: Any) -> None:
    assert not forbidden(made.svg)
    assert ElementTree.fromstring(made.svg).tag.endswith("svg")


@pytest.mark.parametrize("text", ["\r", "\n", '"', ",", '",\r\n=1', HOSTILE])
def test_no_row_of_a_csv_is_torn(text: str, tmp_path: Path) -> None:
    graph = hostile_graph(f"a{text}")
    rows = _rows(graph.save(tmp_path / "graph.csv"))
    assert [row["id"] for row in rows] == [str(node.id) for node in graph.nodes]
    assert [row["thread"] for row in rows] == [node.thread for node in graph.nodes]


def _rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


def test_no_cell_of_a_csv_is_a_formula(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = GRAPH.save(tmp_path / "graph.csv")
    rows = _rows(path)
    assert not [text for row in rows for text in row.values() if re.match(r"[=+\-@\t\r\n]", text)]
    names = [node.name.encode("utf-8", "backslashreplace").decode() for node in GRAPH.nodes]
    assert [row["name"] for row in rows] == ["'" * name.startswith("=") + name for name in names]
    assert any(name.startswith("=") for name in names)
    assert pandas.read_csv(path)["memory_bytes"].dropna().tolist()  # numbers stay numbers


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_what_a_spreadsheet_would_compute_gets_an_apostrophe(text: str) -> None:
    assert cell(text) == f"'{text}"
    assert cell(f"a{text}") == f"a{text}"

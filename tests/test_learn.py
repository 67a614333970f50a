"""docs/learn: as many sections as promised, quoted code that is ours, anchors that exist, tables made by scripts."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from test_docs import ROOT
from test_readme import slug

from torchatlas.autograd import engine

LEARN = ROOT / "docs" / "learn"
SECTIONS = {"summary": 13, "architecture": 6, "examples": 7, "data-flow": 8, "quick-reference": 17}
PAGES = [*sorted(LEARN.glob("*.md")), ROOT / "docs" / "documents.md"]
# Rows of document 002 that an audit of the documents had found open.
OPEN = [1, 9, 12, 16, 17, 18, *range(22, 28), 43, 44, 45, 46, 53, 57, *range(59, 66), 70, *range(81, 90), 94,
        *range(98, 102), 109, *range(111, 118), 123, 124, 126]  # fmt: skip


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = ROOT / "benchmarks" / "learn"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("page", "count"), SECTIONS.items())
def test_a_page_has_the_sections_of_document_002(page: str, count: int) -> None:
    headings = re.findall(r"^## (\d+)\. ", (LEARN / f"{page}.md").read_text(), re.M)
    assert headings == [str(number) for number in range(1, count + 1)]
    (row,) = [line for line in (LEARN / "index.md").read_text().splitlines() if f"]({page}.md) |" in line]
    assert f"| {count} |" in row


def test_there_are_ten_objectives_with_three_questions_and_answers() -> None:
    questions, answers = (LEARN / "objectives.md").read_text().split("\n## Answers\n")
    blocks = re.split(r"^\*\*\d+\. ", questions, flags=re.M)[1:]
    assert [re.findall(r"^(\d)\. ", block, re.M) for block in blocks] == [["1", "2", "3"]] * 10
    found = re.findall(r"^\*\*(\d+)\.\*\* (.*?)^```python", answers, re.M | re.S)
    assert [number for number, _ in found] == [str(number) for number in range(1, 11)]
    assert all(f"({number})" in text for _, text in found for number in (1, 2, 3))


def quotes() -> Iterator[tuple[Path, str]]:
    """Every line of our source that a table quotes: the first cell of rows under a link to a file in Python."""
    for page in PAGES:
        source = None
        for line in page.read_text().splitlines():
            cells = line.removeprefix("| ").removesuffix(" |").split(" | ") if line.startswith("| ") else []
            if not line.startswith("|"):
                source = None
            elif cells and (link := re.match(r"\[\w+\.py\]\((.+?\.py)\)", cells[0])):
                source = (page.parent / link[1]).resolve()
            elif cells and source is not None:
                yield source, cells[0].removeprefix("`").removesuffix("`")


def test_quoted_code_is_in_the_source() -> None:
    found = list(quotes())
    assert len(found) > 50
    missing = [(source.name, line) for source, line in found if line not in source.read_text()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_into_a_page_finds_its_heading(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        target = page.parent / path if path else page
        headings = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
        assert anchor in [slug(heading) for heading in headings], (path, anchor)


def test_every_open_row_of_document_002_has_its_place() -> None:
    text = (ROOT / "docs" / "documents.md").read_text()
    listed: list[int] = []
    for row in re.findall(r"^\| (002\.\d+(?: to 002\.\d+)?) \|.*\]\(", text, re.M):
        first, last = (int(number.removeprefix("002.")) for number in (row.split(" to ") * 2)[:2])
        listed += range(first, last + 1)
    assert listed == OPEN


def test_source_locations_are_those_of_the_installed_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    locations = script("source_locations", monkeypatch)
    written = locations.written()
    version = torch.__version__.split("+")[0]
    if f"Found in torch {version}." not in written:
        pytest.skip(f"the table is of another torch than {version}")
    assert locations.table() == written, "run: python benchmarks/learn/source_locations.py --write"


def test_a_location_is_that_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    locations = script("source_locations", monkeypatch)
    header = "\n".join([
        "struct Node; // a declaration {",  # 1
        "#ifdef _WIN32",
        "struct Leaf : Node {",
        "#else",
        "struct TORCH_API Leaf : Node {",  # 5
        "#endif",
        '  Leaf(int a = f("}")) : a_(a) { work(a); }',  # 7
        "  void run(",  # 8
        "      int a);",
        "};",  # 10
        "inline void run() {",  # 11
        "}",
    ])  # fmt: skip
    assert locations.in_header(header, "Node") is None
    assert locations.in_header(header, "Leaf") == (5, 10)
    assert locations.in_header(header, "Leaf::Leaf") == (7, 7)
    assert locations.in_header(header, "Leaf::run") == (8, 9)
    assert locations.in_header(header, "run") == (11, 12)
    assert locations.in_python("class A:\n    def b(self):\n        pass\n", "A.b") == (2, 3)


def test_the_graphs_that_are_measured_grow_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = script("complexity", monkeypatch)
    for n in (10, 200):
        _, edges = engine.compute_dependencies(measure.chain(n)[1].grad_fn)
        assert (len(edges), sum(map(len, edges.values()))) == (n + 1, n)
        _, edges = engine.compute_dependencies(measure.many_edges(n)[1].grad_fn)
        assert (len(edges), sum(map(len, edges.values()))) == (n + 1, measure.WIDE * n)
        assert measure.saved_bytes(n) == 1024 * (n - 1)
    sizes = (10, 100, 1000)
    assert measure.Curve("square", tuple((n, 3.0 * n * n) for n in sizes)).exponent == pytest.approx(2)


def test_the_plot_shows_every_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = script("complexity", monkeypatch)
    curve = measure.Curve("a curve", ((10, 100.0), (100, 1000.0)))
    svg = measure.draw([curve, curve], "a title", "", ("n", "bytes"), measure.megabytes, "")
    assert svg.count("<polyline") == 2
    assert svg.count("a curve, n = 100: 0.001") == 2
    assert "a curve: n^1.00" in svg

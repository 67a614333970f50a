"""Notebooks show every report as HTML or as a picture: whole, with its numbers, escaped, and scaled to the cell."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from render.reports import ELSEWHERE, MARKUP, REPORTS, step, stopped

import torchatlas as atlas
from torchatlas import types
from torchatlas.render import report_html
from torchatlas.sections import Facts, Lines, Table, text_of

TAGS = {"div", "b", "table", "thead", "tbody", "tr", "th", "td", "span", "p", "br", "code", "a"}
ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
DUMP = re.compile(r"\b[A-Z]\w+\(\w+=")  # as the repr of a dataclass begins
every_report = pytest.mark.parametrize("name", REPORTS)


@pytest.fixture(autouse=True, scope="module")
def _no_backward_stays_paused() -> Iterator[None]:
    yield
    for mark in ("", MARKUP):
        stopped(mark)[0].abort()


class Page(HTMLParser):
    """The tags of a page, which must all be closed, and its text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(markup)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert {name for name, _ in attrs} <= {"style", "title", "href"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(report: Any) -> str:
    """The document, if a notebook shows it as a picture."""
    markup: str = report._repr_html_()
    if not markup.startswith("<img "):
        return markup
    found = re.fullmatch(r'<img style="([^"]*)" alt="[\w ]+" src="data:image/svg\+xml;base64,([\w+/=]+)">', markup)
    assert found is not None
    assert found[1] == "max-width:100%;height:auto"  # no wider than the cell
    return b64decode(found[2]).decode()


def is_picture(markup: str) -> bool:
    return markup.startswith("<svg")


@every_report
def test_a_notebook_shows_a_page_with_a_header_and_the_numbers(name: str) -> None:
    report = REPORTS[name].make("")
    assert type(report).__name__ == name
    markup = shown(report)
    assert [number for number in REPORTS[name].numbers(report) if number not in unescape(markup)] == []
    if is_picture(markup):
        assert ElementTree.fromstring(markup).attrib["viewBox"]
        assert ElementTree.fromstring(report._repr_svg_()).attrib["style"] == "max-width:100%;height:auto"
        return
    page = Page(markup)
    assert page.seen <= TAGS
    assert page.seen & {"b", "th"}
    assert not ADDRESS.search(page.text)
    assert not DUMP.search(page.text)
    assert "http" not in markup
    assert len(markup) < 40_000


@every_report
def test_names_are_text_and_no_markup(name: str) -> None:
    markup = shown(REPORTS[name].make(MARKUP))
    text = "".join(ElementTree.fromstring(markup).itertext()) if is_picture(markup) else Page(markup).text
    assert "<img" not in markup
    assert ("<img onerror" in text) is REPORTS[name].named


@every_report
def test_printed_it_is_text_and_in_a_list_it_is_a_line(name: str) -> None:
    report = REPORTS[name].make("")
    line = repr(report)
    assert not ADDRESS.search(line + str(report))
    assert not DUMP.search(str(report)) or is_picture(shown(report))
    if name not in ("Findings", "Visit"):  # which are shown whole
        assert "\n" not in line
        assert len(line) < 300


def test_every_public_class_has_a_row() -> None:
    """A new report says here how a notebook shows it."""
    of_types = {getattr(types, name).__name__ for name in types.__all__}
    assert {*of_types, "TracedModel", "GraphNode", "GraphEdge", "Graph"} - {*REPORTS, *ELSEWHERE} == set()


# -- the page ----------------------------------------------------------------------------------------------------------


def cell_styles(markup: str, text: str) -> str:
    found = re.search(rf'<t[dh] style="([^"]*)">{re.escape(text)}<', markup)
    assert found is not None, markup
    return found[1]


def test_trees_are_indented_by_padding() -> None:
    """Style sheets of notebooks fold spaces."""
    rows = [["total"], ["  block"], ["    layer"]]
    markup = report_html.sections_html([Table(["module"], rows)])
    paddings = [cell_styles(markup, row[0].strip()).partition("padding-left:")[2] for row in rows]
    assert paddings == ["", "1.8em", "3.0em"]
    assert "> " not in markup


@pytest.mark.parametrize("make", [atlas.module_table, lambda graph: atlas.module_bars(graph, "macs")])
def test_the_modules_are_a_tree(make: Any) -> None:
    markup = make(step(""))._repr_html_()
    assert "padding-left" not in cell_styles(markup, "total")
    assert "padding-left:1.8em" in cell_styles(markup, "first")
    assert "padding-left:3.0em" in cell_styles(markup, "up")


def test_bars_are_as_long_as_their_shares() -> None:
    bars = atlas.module_bars(step(""), "macs")
    widths = [float(width) for width in re.findall(r"width:([\d.]+)em;min-width:1px", bars._repr_html_())]
    shares = [row.share for row in bars.rows if row.share]
    assert widths[0] == max(widths)
    assert [width / widths[0] for width in widths] == pytest.approx(shares, abs=0.01)


def test_colours_are_those_of_the_page() -> None:
    """Half-transparent ones aside, which are there on light and on dark pages."""
    sections = [Lines(["found"], ["note"]), Table(["a", ">b"], [["x", "1"]]), Facts([("fact", "2")])]
    markup = report_html.sections_html(sections)
    assert not re.search("[^-]color:", markup)
    assert set(re.findall(r"background:(\w+)", markup)) == {"none"}


def test_figures_stay_whole_and_long_texts_are_broken() -> None:
    long = "word " * 20
    markup = report_html.sections_html([Table(["text", ">figure"], [[long, "1.00 MiB"]])])
    assert "white-space:nowrap" in cell_styles(markup, "1.00 MiB")
    assert "text-align:right" in cell_styles(markup, "1.00 MiB")
    assert "nowrap" not in cell_styles(markup, long.strip())


def test_nothing_is_too_long() -> None:
    name = "x" * 100_000
    markup = report_html.sections_html([Lines([name], [name]), Table([name], [[name]]), Facts([(name, name)])])
    assert len(markup) < 10_000


def test_sections_without_content_leave_no_trace() -> None:
    assert report_html.sections_html([Lines(["title"]), Facts([])]).count("<table") == 0
    assert text_of([Lines(["title"]), Facts([]), Lines([], [])]) == "title"


def test_the_text_and_the_page_hold_the_same() -> None:
    """Both are views of the same sections."""
    for name in ("CostReport", "MemoryReport", "Comparison", "PartitionReport"):
        report = REPORTS[name].make("")
        words = set(re.findall(r"[\w.,]+", str(report)))  # halves of those that the text cuts as well
        page = Page(report._repr_html_()).text
        assert len(words) > 50
        assert {word for word in words if word not in page} == set()

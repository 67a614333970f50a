"""Mermaid text, read back line by line: every line must be one of the few kinds we write."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from render.graphs import Sketch as Writing
from render.graphs import chain, nested_graphs, recurrent_loop, tower, written
from render.test_dot import HOSTILE, hostile_graph, odd_layers
from synthetic import random_graph

from torchatlas import demo
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph, Tables
from torchatlas.render.mermaid import _MOST_LINES, escaped, mermaid_text
from torchatlas.render.svg import isolated
from torchatlas.render.text_diagram import LineKind, Part, sketch

_LABEL = r'"((?:[^"#`%;<>|\[\]{}()\\\n]|#\d+;|<br/>)*)"'
_BOX = re.compile(rf"(n\d+)(\(\[|\[\[|\[){_LABEL}(\]\)|\]\]|\])")
_OPENS = re.compile(rf"subgraph (g\d+)\[{_LABEL}\]")
_EDGE = re.compile(rf"([ng]\d+) (-->|-\.->|==>)(?:\|{_LABEL}\|)? ([ng]\d+)")
_DEFINES = re.compile(r"classDef (type_[a-z]+|depth\d+) fill:#[0-9A-F]{6},stroke:#[0-9A-F]{6},color:#[0-9A-F]{6}")
_CLASS = re.compile(r"class ([ng]\d+(?:,[ng]\d+)*) (type_[a-z]+|depth\d+)")
_ENDS = {"[": "]", "[[": "]]", "([": "])"}


@dataclass
class Flowchart:
    """A Mermaid text, as it was written."""

    boxes: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # id -> label, shape, group around it
    groups: dict[str, tuple[str, str]] = field(default_factory=dict)  # id -> label, group around it
    edges: list[tuple[str, str, str, str]] = field(default_factory=list)  # from, to, arrow, label
    classes: dict[str, str] = field(default_factory=dict)


def shown(label: str | None) -> str:
    text = (label or "").replace("<br/>", "\n")
    return re.sub(r"#(\d+);", lambda found: chr(int(found[1])), text)


def read_mermaid(text: str) -> Flowchart:
    found, around, defined = Flowchart(), [""], set[str]()
    first, *lines = text.splitlines()
    assert first == "flowchart TB"
    for line in map(str.strip, lines):
        if line == "end":
            around.pop()
        elif box := _BOX.fullmatch(line):
            assert _ENDS[box[2]] == box[4]
            assert box[1] not in found.boxes
            found.boxes[box[1]] = shown(box[3]), box[2], around[-1]
        elif group := _OPENS.fullmatch(line):
            found.groups[group[1]] = shown(group[2]), around[-1]
            around.append(group[1])
        elif edge := _EDGE.fullmatch(line):
            assert around == [""]
            found.edges.append((edge[1], edge[4], edge[2], shown(edge[3])))
        elif define := _DEFINES.fullmatch(line):
            defined.add(define[1])
        elif given_class := _CLASS.fullmatch(line):
            assert given_class[2] in defined
            found.classes |= dict.fromkeys(given_class[1].split(","), given_class[2])
        else:
            raise AssertionError(f"not a line of ours: {line!r}")
    assert around == [""]
    return found


def check(graph: Graph, most_boxes: int) -> Flowchart:
    """The text says what the sketch says, which test_dot.py compares with the wiring."""
    text = mermaid_text(graph, most_boxes)
    assert text == mermaid_text(graph, most_boxes)
    read, found = read_mermaid(text), sketch(graph, most_boxes)
    ids: dict[int, str] = {}

    def visit(parts: tuple[Part, ...], around: str) -> None:
        for part in parts:
            ids[part.number] = f"{'g' if part.is_open else 'n'}{part.number}"
            if part.is_open:
                assert read.groups[ids[part.number]][1] == around
                visit(part.inner, ids[part.number])
            else:
                label, shape, group = read.boxes[ids[part.number]]
                assert label == "\n".join(isolated(row) for row in (part.title, part.subtitle) if row)
                assert group == around
                assert (shape == "([") == (part.kind == "terminal")

    visit(found.parts, "")
    assert set(read.boxes) | set(read.groups) == set(ids.values()) == set(read.classes)
    assert len(read.boxes) <= max(most_boxes, len(found.parts))
    arrows = {LineKind.TENSOR: "-->", LineKind.AGAIN: "-.->", LineKind.KEPT: "==>"}
    assert read.edges == [(ids[line.source], ids[line.target], arrows[line.kind], line.label) for line in found.lines]
    return read


@settings(max_examples=60, deadline=None)
@given(nested_graphs(most_ops=300), st.sampled_from((1, 5, 30, 80)))
@example(written([("dense", 5)] * 3, inputs=1, training="two steps", named="plain", most_ops=300), 80)
def test_any_graph_is_written_as_it_is_sketched(graph: Graph, most_boxes: int) -> None:
    while len(sketch(graph, most_boxes).lines) > _MOST_LINES:  # what has too many lines has fewer boxes
        most_boxes = most_boxes * 3 // 4
    check(graph, most_boxes)


def test_a_training_step_has_thick_edges_between_its_phases() -> None:
    read = check(demo.training_step(), 80)
    thick = [edge for edge in read.edges if edge[2] == "==>"]
    assert {read.groups.get(edge[0], read.boxes.get(edge[0], ("",)))[0].split(" · ")[0] for edge in thick} >= {
        "forward"
    }
    assert all(re.fullmatch(r"[\d,]+ tensors?", edge[3]) for edge in thick)


def test_a_repeat_is_one_subgraph_with_dotted_edges() -> None:
    read = check(tower(6), 80)
    ((label, around),) = read.groups.values()
    assert label.startswith("Block ×6")
    assert around == ""
    assert len([edge for edge in read.edges if edge[2] == "-.->"]) == 2
    assert len([edge for edge in check(recurrent_loop(9), 80).edges if edge[2] == "-.->"]) == 1


def test_a_closed_group_is_marked() -> None:
    writing = Writing()
    x = writing.input()
    for name in ("one", "two"):
        with writing.module(name, name):
            x = writing.op(f"{name}_b", writing.op(f"{name}_a", x))
    graph = writing.graph()
    assert [label[:5] for label, _, _ in check(graph, 3).boxes.values()] == ["x\n2×3", "+ one", "+ two"]
    assert "#43; one" in mermaid_text(graph, 3), "a plus and a blank begin a list of Markdown"


def test_names_are_shown_and_never_obeyed() -> None:
    read = check(hostile_graph(), 80)
    labels = [label for label, *_ in (*read.groups.values(), *read.boxes.values())]
    for name in HOSTILE:
        if name.isprintable() and len(name) < 80:
            assert any(name in label for label in labels), name
    assert max(map(len, labels)) < 250
    assert len(read.edges) == len(read.boxes) - 1, "a chain: no edge came from a name"


def test_a_name_from_right_to_left_leaves_its_figures_alone() -> None:
    labels = [label for label, *_ in check(odd_layers(), 80).boxes.values()]
    assert any(label.endswith("\u2068\u05d0\u05d1\u2069 · 8→16") for label in labels)


@given(st.text())
def test_no_text_leaves_its_label(text: str) -> None:
    text = text.replace("\n", " ")  # the sketch has none
    written = escaped(text)
    assert re.fullmatch(r"(?:[^\W_]|[ ,.×→·…]|#\d+;)*", written)
    assert shown(written) == text


@pytest.mark.parametrize(
    "text", ["1. one", "- one", "+ one", "* one", "# one", "> one", "_a_ **b**", "...", "http://a.b", "www.a"]
)
def test_labels_hold_no_markdown(text: str) -> None:
    written = re.sub(r"#\d+;", "", escaped(text))
    assert not re.search(r"^\d+\.|[-+*>_/:]|www\.", written)


def test_what_mermaid_would_refuse_is_closed() -> None:
    """More than 500 edges, which no page draws: 60 ops that all read each other."""
    writing = Writing()
    with writing.module("", "Net"):
        made = [writing.input()]
        for number in range(6):
            with writing.module(f"part{number}", f"Part{number}"):
                for step in range(10):
                    made.append(writing.op(f"op{number}_{step}", *made))
    graph = writing.graph()
    assert len(sketch(graph, 80).lines) > 500
    read = read_mermaid(mermaid_text(graph, 80))
    assert len(read.edges) <= 500
    assert len(read.boxes) > 10


def test_empty_and_tiny_graphs() -> None:
    empty = Graph(random_graph(0, 0).columns, Tables())
    assert mermaid_text(empty) == "flowchart TB\n"
    writing = Writing()
    writing.op("relu", writing.parameter("weight", (3,)))
    assert [label for label, _, _ in check(writing.graph(), 1).boxes.values()] == ["relu"]


def test_a_large_flat_graph_stays_within_mermaids_limits() -> None:
    for graph in (chain(3000), random_graph(20_000, 40_000)):
        text = mermaid_text(graph)
        read = read_mermaid(text)
        assert len(read.boxes) <= 80
        assert len(read.edges) <= 500
        assert len(text) <= 50_000


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="whole number from 1 on"):
        mermaid_text(chain(3), 0)


def test_it_is_saved_by_suffix(tmp_path: Path) -> None:
    graph = tower(3)
    assert graph.save(tmp_path / "x.mmd").read_text(encoding="utf-8") == mermaid_text(graph)

"""DOT text, read back by a parser of our own and compared with the outline it was made of."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from render.graphs import Sketch as Writing
from render.graphs import chain, nested_graphs, recurrent_loop, tower
from synthetic import random_graph
from torch import nn
from zoo import ZOO, Specimen

import torchatlas as atlas
from torchatlas import demo
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph, Tables
from torchatlas.render.dot import dot_text, quoted, write_dot
from torchatlas.render.layout.outline import Item
from torchatlas.render.text_diagram import LineKind, Sketch, sketch

HOSTILE = (
    'a"];malicious [shape=star',
    "end",
    "two\nlines\r\n\t",
    "\\N \\G \\",
    "<b>html</b>",
    "&lt;&#65;",
    "%%{init: {}}%%",
    "click n1 callback",
    "`*code*`",
    "1. list",
    "🙂 名前 \N{RIGHT-TO-LEFT OVERRIDE}x\x00",
    "long" * 2500,
    "x|y; z{w}(v)#35;",
    "www.example",
    "ﬂ°°60¶ß",
)


def hostile_graph() -> Graph:
    """Modules, inputs and outputs with names that mean something to DOT or Mermaid, nested in each other."""
    writing = Writing()
    x = writing.input(HOSTILE[0] + "\ud800")
    with writing.module("", HOSTILE[4]):
        for number, name in enumerate(HOSTILE):
            with writing.module(name.replace(".", "_"), name):
                x = writing.op(f"relu{number}", writing.op("mul", x))
                with writing.module(HOSTILE[-1 - number].replace(".", "_"), HOSTILE[-1 - number]):
                    x = writing.op(f"exp{number}", x)
    writing.output(x, name=HOSTILE[1])
    return writing.graph()


# -- a parser --------------------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A digraph or a cluster, as it was written."""

    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    inner: list[Cluster] = field(default_factory=list)

    def walk(self) -> Iterator[Cluster]:
        yield self
        for cluster in self.inner:
            yield from cluster.walk()

    def all_nodes(self) -> dict[str, dict[str, str]]:
        return {name: node for cluster in self.walk() for name, node in cluster.nodes.items()}


_TOKEN = re.compile(r'\s*("(?:[^"\\\n]|\\.)*"|->|[{}\[\];,=]|[A-Za-z_][A-Za-z_0-9]*|[0-9.]+)')


def read_dot(text: str) -> Cluster:
    tokens: list[str] = []
    at = 0
    while at < len(text.rstrip()):
        found = _TOKEN.match(text, at)
        assert found, f"not DOT: {text[at : at + 60]!r}"
        tokens.append(found[1])
        at = found.end()
    tokens.reverse()
    assert tokens.pop() == "digraph"
    graph = _read_group(tokens, "")
    assert not tokens
    return graph


def _read_group(tokens: list[str], name: str) -> Cluster:
    group = Cluster(name)
    assert tokens.pop() == "{"
    while (word := tokens.pop()) != "}":
        if word == ";":
            continue
        if word == "subgraph":
            group.inner.append(_read_group(tokens, tokens.pop()))
        elif tokens[-1] == "=":
            tokens.pop()
            group.attributes[word] = tokens.pop()
        elif tokens[-1] == "->":
            tokens.pop()
            group.edges.append((word, tokens.pop(), _read_attributes(tokens)))
        elif word == "graph":
            group.attributes |= _read_attributes(tokens)
        elif word in ("node", "edge"):
            _read_attributes(tokens)
        else:
            assert re.fullmatch(r"n\d+", word), word
            assert word not in group.nodes
            group.nodes[word] = _read_attributes(tokens)
    return group


def _read_attributes(tokens: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    if tokens[-1] != "[":
        return found
    while tokens.pop() != "]":
        if tokens[-1] == "]":
            continue
        name = tokens.pop()
        assert tokens.pop() == "="
        found[name] = tokens.pop()
    return found


def shown(label: str) -> str:
    """What Graphviz draws for a quoted label."""
    assert label[0] == label[-1] == '"'
    text = re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), label[1:-1])
    return text.replace("&lt;", "<").replace("&amp;", "&")


# -- what the outline says -------------------------------------------------------------------------------------------


def wired(found: Sketch) -> dict[tuple[int, int], set[int]]:
    """Box to box, the tensors between them, followed through the wiring of every open group."""
    outline = found.outline
    part_of = {id(part.item): part for part in found.walk()}
    pairs: dict[tuple[int, int], set[int]] = defaultdict(set)

    def is_open(item: Item) -> bool:
        return part_of[id(item)].is_open

    def makers(item: Item, tensor: int) -> tuple[int, int]:
        while is_open(item):
            place, tensor = outline.wiring(item).inside[tensor]
            item = outline.children(item)[place]
        return part_of[id(item)].number, tensor

    def takers(item: Item, tensor: int) -> Iterator[int]:
        if not is_open(item):
            yield part_of[id(item)].number
            return
        for come, to, carried in outline.wiring(item).edges:
            if come < 0 and carried == tensor:
                yield from takers(outline.children(item)[to], tensor)

    groups = [outline.root, *(part.item for part in found.walk() if part.is_open)]
    for group in groups:
        items = outline.children(group)
        for come, to, tensor in outline.wiring(group).edges:
            if come >= 0 and tensor >= 0:
                maker, inside = makers(items[come], tensor)
                for taker in takers(items[to], tensor):
                    pairs[maker, taker].add(inside)
    return pairs


def kept(found: Sketch) -> dict[tuple[int, int], int]:
    """Between lanes, or closed boxes around such, how many tensors one takes from the other."""
    outline, tree = found.outline, found.outline.tree
    parts = {id(part.item): part for part in found.walk()}

    def lane(leaf: int) -> int:
        for item, _, _ in outline.around(leaf):
            part = parts[id(item)]
            if not item.is_leaf and (item.kind == "lane" or not part.is_open):
                return part.number
        return -1

    taken = set()
    for source, output, target in zip(tree.kept_source, tree.kept_output, tree.kept_target, strict=True):
        ends = lane(int(source)), lane(int(target))
        if min(ends) >= 0 and ends[0] != ends[1]:
            taken.add((*ends, int(source), int(output)))
    return dict(Counter((come, to) for come, to, _, _ in taken))


def check(graph: Graph, most_boxes: int) -> Cluster:
    """Everything the text says is in the outline, and all of the outline is in the text."""
    text = dot_text(graph, most_boxes)
    assert text == dot_text(graph, most_boxes)
    read, found = read_dot(text), sketch(graph, most_boxes)
    parts = {part.number: part for part in found.walk()}
    boxes = {f"n{part.number}": part for part in parts.values() if not part.is_open}
    assert set(read.all_nodes()) == set(boxes)
    assert len(boxes) <= max(most_boxes, len(found.parts))
    numbers = {id(part.item): part.number for part in parts.values()}
    for cluster in read.walk():
        inside = {f"cluster_{numbers[id(found_part.item)]}" for found_part in parts.values() if found_part.is_open}
        assert cluster.name in inside | {""}
        item = parts[int(cluster.name.removeprefix("cluster_"))].item if cluster.name else found.outline.root
        children = [numbers[id(child)] for child in found.outline.children(item)]
        assert [f"n{number}" for number in children if not parts[number].is_open] == list(cluster.nodes)
        assert [f"cluster_{number}" for number in children if parts[number].is_open] == [c.name for c in cluster.inner]
        assert cluster.name == "" or not cluster.edges
    plain, thick = defaultdict[tuple[int, int], int](int), {}
    for come, to, attributes in read.edges:
        pair = int(come[1:]), int(to[1:])
        label = shown(attributes.get("label", '""'))
        if attributes.get("style") == "bold":
            ends = (attributes.get("ltail", ""), attributes.get("lhead", ""))
            known = (int(end.removeprefix("cluster_")) if end else box for end, box in zip(ends, pair, strict=True))
            for box, end in zip((come, to), ends, strict=True):
                assert end == "" or box in next(c for c in read.walk() if c.name == end).all_nodes()
            thick[tuple(known)] = int(label.split()[0].replace(",", ""))
        elif attributes.get("style") != "dashed":
            many = re.fullmatch(r"([\d,]+) tensors", label)
            plain[pair] += int(many[1].replace(",", "")) if many else 1
    assert plain == {pair: len(tensors) for pair, tensors in wired(found).items()}
    assert thick == kept(found)
    return read


# -- tests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_a_specimen_is_written_as_it_is_wired(specimen: Specimen) -> None:
    model, args, kwargs = specimen.build()
    graph = atlas.capture(model, *args, kwargs=kwargs, backward=specimen.trains)
    for most_boxes in (1, 12, 200):
        check(graph, most_boxes)


def test_a_training_step_has_thick_edges_between_its_phases() -> None:
    graph = demo.training_step()
    thick = [edge for edge in check(graph, 200).edges if edge[2].get("style") == "bold"]
    assert len(thick) >= 2
    assert all("cluster_" in edge[2].get("ltail", "") for edge in thick)
    check(graph, 30)


@settings(max_examples=60, deadline=None)
@given(nested_graphs(most_ops=300), st.sampled_from((1, 5, 30, 200)))
def test_any_graph_is_written_as_it_is_wired(graph: Graph, most_boxes: int) -> None:
    check(graph, most_boxes)


def test_a_tower_is_one_open_repeat_with_its_dashed_edges() -> None:
    read = check(tower(6), 200)
    (block,) = read.inner
    assert shown(block.attributes["label"]).startswith("Block ×6 · layers.0 … 5")
    titles = {name: shown(node["label"]).split("\n")[0] for name, node in read.all_nodes().items()}
    dashed = [(titles[a], titles[b]) for a, b, more in read.edges if more.get("style") == "dashed"]
    assert sorted(dashed) == [("add", "Linear"), ("add", "add")]  # to the first layer, and past it


def test_a_loop_hands_its_state_to_its_next_round() -> None:
    read = check(recurrent_loop(9), 200)
    titles = {name: shown(node["label"]).split("\n")[0] for name, node in read.all_nodes().items()}
    dashed = [(titles[a], titles[b]) for a, b, more in read.edges if more.get("style") == "dashed"]
    assert dashed == [("tanh", "mul")]


def test_a_dense_block_hands_on_without_a_shape() -> None:
    """Its rounds differ in size: a shape on what leaves them would be that of the first."""
    writing = Writing()
    features = [writing.input("x", (2, 8))]
    for number in range(8):
        with writing.module(f"layer{number}", "Layer"):
            joined = writing.op("cat", *features, shape=(2, 8 * len(features)))
            features.append(writing.op("grow", joined, shape=(2, 3 + number)))
    writing.output(writing.op("stack", *features[1:], shape=(9, 9)))
    read = check(writing.graph(), 200)
    (block,) = read.inner
    assert "×8" in shown(block.attributes["label"])
    leaving = [more for come, to, more in read.edges if come in block.nodes and to not in block.nodes]
    assert leaving == [{}]
    assert any(more.get("style") == "dashed" for _, _, more in read.edges)


def test_hundreds_of_steps_are_closed_and_joined() -> None:
    """More lanes than a page has room for: they are cut into segments, and thick edges lead from one to the next."""
    writing = Writing()
    x = writing.input()
    for writing.iteration in range(150):
        x = writing.op(f"step{writing.iteration}", x)
    found = sketch(writing.graph(), 1)
    segments = [part.number for part in found.parts if part.kind == "closed"]
    thick = [(line.source, line.target, line.many) for line in found.lines if line.kind == LineKind.KEPT]
    assert 10 < len(segments) <= 30
    assert thick == [(come, to, 1) for come, to in itertools.pairwise(segments)]


def test_levels_open_from_the_outside_in() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), nn.Sequential(nn.GELU(), nn.ReLU())
    )
    graph = atlas.capture(model, torch.zeros(1, 4))
    titles = {most: [shown(node["label"]) for node in check(graph, most).all_nodes().values()] for most in (4, 5, 6, 7)}
    assert [title[0] for title in titles[4]].count("+") == 2
    assert [title[0] for title in titles[5]].count("+") == 2, "the smaller one does not come before the larger"
    assert [title[0] for title in titles[6]].count("+") == 1, "the larger one fits alone"
    assert any(title.startswith("Tanh") for title in titles[6])
    assert [title[0] for title in titles[7]].count("+") == 0


def test_a_shape_is_written_once_and_only_where_it_is_new() -> None:
    writing = Writing()
    x = writing.input("x", (2, 8))
    wide = writing.op("mm", x, shape=(2, 32))
    same = writing.op("relu", wide)
    writing.output(writing.op("add", same, wide), same)
    edges = check(writing.graph(), 200).edges
    assert [shown(more["label"]) for _, _, more in edges if "label" in more] == ["2×32"]


def test_many_tensors_between_two_boxes_are_one_edge() -> None:
    writing = Writing()
    x = writing.input()
    with writing.module("one", "One"):
        parts = writing.ops("split", x, shapes=[(2, number) for number in range(20)])
    writing.output(*parts)
    edges = check(writing.graph(), 200).edges
    assert [more.get("label") for _, _, more in edges] == [None, '"20 tensors"']


def test_colours_are_those_of_the_theme_and_markers_are_round() -> None:
    graph = atlas.capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.zeros(1, 2))
    nodes = list(check(graph, 200).all_nodes().values())
    assert [node.get("style") for node in nodes] == ['"rounded,filled"', None, None, '"rounded,filled"']
    assert len({node["fillcolor"] for node in nodes}) == 3


def test_names_are_shown_and_never_obeyed() -> None:
    read = check(hostile_graph(), 200)
    labels = [shown(c.attributes["label"]) for c in read.inner] + [shown(n["label"]) for n in read.all_nodes().values()]
    assert any('a"];malicious [shape=star' in label for label in labels)
    assert any("\\N \\G \\" in label for label in labels)
    assert any("two\\nlines" in label for label in labels)
    assert any("&lt;&#65;" in label for label in labels)
    assert max(map(len, labels)) < 250
    assert len(read.edges) == len(read.all_nodes()) - 1, "a chain: no edge came from a name"


def odd_layers() -> Graph:
    """A Linear of three dimensions, which is views around a product of two, with a Hebrew name."""
    model = nn.Sequential()
    model.add_module("\u05d0\u05d1", nn.Linear(8, 16))
    model.add_module("two", nn.Linear(16, 4))
    return atlas.capture(model, torch.randn(2, 5, 8))


def test_a_name_from_right_to_left_leaves_its_figures_alone() -> None:
    labels = [shown(node["label"]) for node in check(odd_layers(), 200).all_nodes().values()]
    assert any(label.endswith("\u2068\u05d0\u05d1\u2069 · 8→16") for label in labels)


def test_lines_say_in_which_shape_a_box_gets_a_tensor() -> None:
    found = [shown(line.get("label", '""')) for _, _, line in check(odd_layers(), 200).edges]
    assert [label for label in found if label] == ["2×5×16", "2×5×4"]


@given(st.text())
def test_any_text_is_quoted(text: str) -> None:
    text = text.replace("\n", " ")  # rows have none
    written = quoted(text)
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"', written, re.DOTALL)
    assert shown(written) == text


def test_graphviz_reads_it_too(tmp_path: Path) -> None:
    dot = shutil.which("dot")
    if dot is None:
        pytest.skip("Graphviz is not installed")
    path = tmp_path / "hostile.gv"
    write_dot(hostile_graph(), path)
    output = subprocess.run([dot, "-Tdot_json", str(path)], check=True, capture_output=True, timeout=60)
    objects = json.loads(output.stdout)["objects"]
    assert output.stderr == b""
    read = read_dot(path.read_text())
    nodes = {one["name"]: one["label"] for one in objects if not one["name"].startswith("cluster")}
    assert set(nodes) == set(read.all_nodes())
    assert {one["name"] for one in objects if one["name"].startswith("cluster")} == {c.name for c in read.walk()} - {""}


def test_empty_and_tiny_graphs() -> None:
    empty = Graph(random_graph(0, 0).columns, Tables())
    assert read_dot(dot_text(empty)).all_nodes() == {}
    assert len(check(random_graph(1, 0), 200).all_nodes()) <= 1
    writing = Writing()
    writing.op("relu", writing.parameter("weight", (3,)))
    assert [shown(node["label"]) for node in check(writing.graph(), 1).all_nodes().values()] == ["relu"]


def test_a_large_flat_graph_stays_within_the_limit() -> None:
    for graph in (chain(3000), random_graph(20_000, 40_000)):
        found = sketch(graph, 60)
        assert len([part for part in found.walk() if not part.is_open]) <= 60
        assert any(line.kind == LineKind.TENSOR for line in found.lines)
        read_dot(dot_text(graph, 60))


@pytest.mark.parametrize("most_boxes", [0, -1, 2.5, True, "many"])
def test_a_limit_that_is_none_is_refused(most_boxes: int) -> None:
    with pytest.raises(InvalidInputError, match="whole number from 1 on"):
        dot_text(chain(3), most_boxes)


def test_it_is_saved_by_suffix(tmp_path: Path) -> None:
    graph = tower(3)
    for suffix in (".dot", ".gv"):
        assert graph.save(tmp_path / f"x{suffix}").read_text(encoding="utf-8") == dot_text(graph)


def test_shapes_are_those_of_the_picture() -> None:
    """Also where views lie between: backward of a sum hands a scalar on, expanded."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    graph = atlas.capture(model, torch.randn(2, 3), backward=True)
    picture = atlas.draw(graph, width=2400, height=1800)
    drawn = {label.text for label in picture.scene.labels}
    read = check(graph, 200)
    titles = {name: shown(node["label"]) for name, node in read.all_nodes().items()}
    found = [(titles[one], shown(more["label"])) for one, _, more in read.edges if "label" in more]
    assert ("ones_like", "2×5") in found
    assert {label for _, label in found} <= drawn

"""Pages of the viewer: what is in the file, what may run in it, and the graph that comes back from it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import zipfile
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import HOSTILE, NO_UNICODE, forbidden, hostile_graph
from torch import nn

import torchatlas as atlas
from torchatlas.errors import FileFormatError, FileSystemError, InvalidInputError, StateError
from torchatlas.export.html import MOST_EXPANSION, load_pages
from torchatlas.graph import Graph
from torchatlas.render.viewer import html_page as page_file
from torchatlas.render.viewer.html_page import PageDocument, page


@pytest.fixture(scope="module")
def graph() -> Graph:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return atlas.capture(model, torch.randn(4, 8), optimizer=torch.optim.SGD)


class Elements(HTMLParser):
    """The elements of a page: (tag, attributes, text), and every attribute of any."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], str]] = [("", {}, "")]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.found.append(("", {}, ""))

    def handle_data(self, data: str) -> None:
        tag, attributes, text = self.found[-1]
        self.found[-1] = (tag, attributes, text + data)

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.found if name == tag]


def saved(graph: Graph, path: Path, **options: Any) -> Elements:
    return Elements(graph.save(path / "step.html", **options).read_text())


def policy_of(elements: Elements) -> dict[str, list[str]]:
    (content,) = [
        meta["content"] or "" for meta, _ in elements.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    return {words[0]: words[1:] for words in (part.split() for part in content.split(";"))}


def hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# -- what may run ------------------------------------------------------------------------------------------------------


def test_only_the_script_and_the_styles_of_the_page_are_allowed_and_nothing_is_requested(
    graph: Graph, tmp_path: Path
) -> None:
    elements = saved(graph, tmp_path)
    policy = policy_of(elements)
    scripts = [text for attributes, text in elements.all("script") if "type" not in attributes]
    assert len(scripts) == 1
    assert policy["script-src"] == [hash_of(scripts[0])]
    assert sorted(policy["style-src"]) == sorted(hash_of(text) for _, text in elements.all("style"))
    assert policy["default-src"] == ["'none'"]
    assert policy["img-src"] == ["data:", "blob:"]
    assert policy["font-src"] == ["data:"]
    assert set(policy) == {
        *("default-src", "script-src", "style-src", "img-src", "font-src", "base-uri", "form-action")
    }


def test_the_page_names_no_other_address(graph: Graph, tmp_path: Path) -> None:
    for tag, attributes, _ in saved(graph, tmp_path).found:
        for name in ("src", "href", "action", "data", "srcset"):
            assert (attributes.get(name) or "data:").startswith("data:"), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    for text in (HOSTILE, "</script><script>alert(1)</script>\"'", "x" * 100_000, "\u202e\u2066abc", "\ud800"):
        data = page([PageDocument(text, b"document")], title=text, still="<svg/>").decode()
        elements = Elements(data)
        assert [tag for tag, _, _ in elements.found].count("script") == 3, text
        (title,) = [text for _, text in elements.all("title")]
        assert len(title) <= 200
        assert title.isprintable()
        assert len(data) < 1_000_000
    elements = saved(hostile_graph(), tmp_path)
    assert len(elements.all("script")) == 3
    text = (tmp_path / "step.html").read_text()
    for ours in page_file._asset("viewer.js"), page_file._asset("viewer.css"):
        text = text.replace(ours, "")
    assert not forbidden(text)


# -- what is in it -----------------------------------------------------------------------------------------------------


def test_the_parts_of_a_page(graph: Graph, tmp_path: Path) -> None:
    elements = saved(graph, tmp_path, title="my <model>")
    assert elements.all("html")[0][0]["lang"] == "en"
    names = {meta.get("name"): meta["content"] for meta, _ in elements.all("meta") if "name" in meta}
    assert names["color-scheme"] == "light dark"
    assert names["viewport"] == "width=device-width, initial-scale=1"
    assert elements.all("title")[0][1].strip() == "my <model>"
    (app,) = [attributes for attributes, _ in elements.all("div") if attributes.get("id") == "app"]
    assert app
    text = (tmp_path / "step.html").read_text()
    assert re.search(r'<div id="app"><p class="reading" role="status"><b>my &lt;model&gt;</b>reading ', text)
    assert text.index('id="app"') < text.index("application/x-atlas") < text.rindex("<script>")


def test_scripts_off_show_the_still_picture(graph: Graph, tmp_path: Path) -> None:
    (image, _), text = saved(graph, tmp_path).all("img")[0], (tmp_path / "step.html").read_text()
    prefix = "data:image/svg+xml;base64,"
    assert (image["src"] or "").startswith(prefix)
    assert base64.b64decode((image["src"] or "").removeprefix(prefix)).decode() == atlas.draw(graph).svg
    inside = text[text.index("<noscript><div") : text.rindex("</noscript>")]
    assert "<img " in inside
    assert "still picture" in inside


def test_the_document_is_the_graph_and_says_its_size(graph: Graph, tmp_path: Path) -> None:
    found = [(a, text) for a, text in saved(graph, tmp_path).all("script") if a.get("type") == "application/x-atlas"]
    assert [attributes["id"] for attributes, _ in found] == ["document-0"]
    data = gzip.decompress(base64.b64decode(found[0][1]))
    assert found[0][0]["data-bytes"] == str(len(data))
    assert found[0][0]["data-name"] == "Sequential"
    (tmp_path / "inside.atlas").write_bytes(data)
    assert Graph.load(tmp_path / "inside.atlas").identical(graph)


def test_the_page_carries_the_look_of_still_pictures_and_the_fonts(graph: Graph, tmp_path: Path) -> None:
    elements = saved(graph, tmp_path)
    (look,) = [text for attributes, text in elements.all("script") if attributes.get("id") == "style"]
    found = json.loads(look)
    assert found["themes"]["dark"]["fills"]["matmul"] == list(page_file.THEMES["dark"].fills["matmul"])
    assert found["geometry"]["small_text"] == page_file.STYLE.small_text
    style = elements.all("style")[0][1]
    assert (
        len(re.findall(r'@font-face\{font-family:"Inter";font-weight:(?:400|600);src:url\(data:font/woff', style)) == 6
    )


def test_the_same_graph_gives_the_same_bytes(graph: Graph, tmp_path: Path) -> None:
    first = graph.save(tmp_path / "one.html").read_bytes()
    graph.save(tmp_path / "step.atlas")
    assert atlas.load(tmp_path / "step.atlas").save(tmp_path / "two.html").read_bytes() == first


def test_an_empty_graph_and_an_empty_viewer(tmp_path: Path) -> None:
    assert len(atlas.load(Graph().save(tmp_path / "empty.html"))) == 0
    elements = Elements(page([], title="torchatlas").decode())
    assert [
        attributes for attributes, _ in elements.all("script") if attributes.get("type") == "application/x-atlas"
    ] == []


def test_a_viewer_that_was_not_built_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_file, "_ASSET", tmp_path)
    page_file._asset.cache_clear()
    with pytest.raises(StateError, match="make viewer"):
        page([], title="x")
    (tmp_path / "viewer.css").write_text("/* </style> */")
    with pytest.raises(StateError, match="cannot stand inside a page"):
        page([], title="x")
    page_file._asset.cache_clear()


# -- options -----------------------------------------------------------------------------------------------------------


def test_options_of_other_formats_are_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"^\.svg files take no option overlay=; \.htm and \.html files do\.$"):
        graph.save(tmp_path / "step.svg", overlay={})
    with pytest.raises(
        InvalidInputError, match=r"take no option overlays=; did you mean 'overlay'\? There are title=,"
    ):
        graph.save(tmp_path / "step.html", overlays={})
    with pytest.raises(InvalidInputError, match="title=3 is no text"):
        graph.save(tmp_path / "step.html", title=3)
    assert list(tmp_path.iterdir()) == []


def members(path: Path) -> set[str]:
    """What the viewer finds beside the graph in the first document of a page."""
    found = re.search(r'id="document-0"[^>]*>([^<]*)<', path.read_text())
    assert found
    archive = zipfile.ZipFile(io.BytesIO(gzip.decompress(base64.b64decode(found[1]))))
    return {name.removeprefix("viewer/") for name in archive.namelist() if name.startswith("viewer/")}


def test_what_is_laid_over_the_graph_reaches_the_page(graph: Graph, tmp_path: Path) -> None:
    model = nn.Linear(8, 2)
    with atlas.doctor(model=model) as visit:
        model(torch.randn(4, 8)).sum().backward()
    options = {
        "overlay.json": {"overlay": {"0": 1.5}},
        "findings.json": {"findings": visit},
        "node_partition.npy": {"partition": atlas.GraphPartitioner().partition(graph)},
        "node_stage.npy": {"stages": atlas.pipeline_stages(graph, 2)},
    }
    plain = members(graph.save(tmp_path / "plain.html"))
    for number, (member, option) in enumerate(options.items()):
        assert member not in plain
        assert member in members(graph.save(tmp_path / f"{number}.html", **option))
    assert "alignment.json" in members(atlas.compare(graph, graph).save(tmp_path / "both.html"))
    a100, other = (graph.save(tmp_path / f"{name}.html", device=name) for name in ("a100-80gb", "generic"))
    assert a100.read_bytes() != other.read_bytes()


def test_a_report_is_laid_over_its_graph(graph: Graph, browser: list[str]) -> None:
    recorded = atlas.record_backward(nn.Linear(8, 2)(torch.randn(4, 8)).sum())
    assert "backward.json" in members(atlas.view(recorded))
    assert "node_partition.npy" in members(atlas.view(atlas.GraphPartitioner().partition(graph)))
    assert "node_stage.npy" in members(atlas.view(atlas.pipeline_stages(graph, 2)))


# -- back to a graph ---------------------------------------------------------------------------------------------------


def test_a_page_loads_as_the_graph(graph: Graph, tmp_path: Path) -> None:
    path = graph.save(tmp_path / "STEP.HTML")
    assert atlas.load(path).identical(graph)
    ((name, again),) = load_pages(path)
    assert name == "Sequential"
    assert again.identical(graph)


def test_a_comparison_is_a_page_of_two_graphs(graph: Graph, tmp_path: Path) -> None:
    other = atlas.capture(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(4, 8))
    path = atlas.compare(graph, other).save(tmp_path / "both.html", title="two versions")
    found = load_pages(path)
    assert [name for name, _ in found] == ["before", "after"]
    assert [one.hash for _, one in found] == [graph.hash, other.hash]
    assert "<title>two versions</title>" in path.read_text()
    with pytest.raises(FileFormatError, match="it compares 2 graphs"):
        atlas.load(path)
    with pytest.raises(FileFormatError, match=r"saved as \.html"):
        atlas.compare(graph, other).save(tmp_path / "both.json")


def changed(path: Path, find: str, put: str) -> Path:
    text, found = path.read_text(), path.with_name("changed.html")
    assert re.search(find, text)
    found.write_text(re.sub(find, put, text, count=1))
    return found


@pytest.mark.parametrize(
    ("find", "put", "message"),
    [
        ("application/x-atlas", "text/plain", "not a page that torchatlas wrote"),
        (r'(data-bytes=")\d+', r"\g<1>5", "of 5 bytes was expected"),
        (r'(data-bytes=")\d+', r"\g<1>999999999999", f"more than {MOST_EXPANSION} times"),
        (r'(data-bytes="\d+">)H', r"\g<1>I", "cannot be unpacked"),
        (r'(data-bytes="\d+">)H', r"\g<1>", "not base64"),
        (r'(data-bytes=")\d+">[^<]*', r'\g<1>0">', "a graph of 0 bytes was expected"),
        (r'(data-bytes="\d+">)', r"\g<1>%", "not a page that torchatlas wrote"),
    ],
)
def test_damaged_pages_are_refused_with_their_name(
    graph: Graph, tmp_path: Path, find: str, put: str, message: str
) -> None:
    path = changed(graph.save(tmp_path / "step.html"), find, put)
    with pytest.raises(FileFormatError, match=re.escape(message)) as caught:
        atlas.load(path)
    assert str(path) in str(caught.value)


def test_a_page_that_is_cut_off_says_so(graph: Graph, tmp_path: Path) -> None:
    data = graph.save(tmp_path / "step.html").read_bytes()
    path, begins = tmp_path / "cut.html", data.index(b'<script type="application/x-atlas"')
    for kept in (3000, begins - 1, begins + 200):
        path.write_bytes(data[:kept])
        with pytest.raises(FileFormatError, match=rf"cut\.html: cut off after {kept:,} bytes"):
            atlas.load(path)
    path.write_bytes(data[:-100])  # the graph is whole, only the viewer's script is not
    assert atlas.load(path) == graph
    path.write_bytes(b"<!doctype html>\n<html>")
    with pytest.raises(FileFormatError, match="not a page that torchatlas wrote"):
        atlas.load(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    packed = base64.b64encode(gzip.compress(bytes(50_000_000))).decode()
    for claimed in (50_000_000, 4_000_000):
        text = (
            f'<script type="application/x-atlas" id="document-0" data-name="" data-bytes="{claimed}">{packed}</script>'
        )
        (tmp_path / "bomb.html").write_text(text)
        with pytest.raises(FileFormatError, match=r"bomb\.html"):
            atlas.load(tmp_path / "bomb.html")


def test_an_archive_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_bytes(page([PageDocument("x", b"PK nothing")], title="x"))
    with pytest.raises(FileFormatError, match=r"other\.html"):
        atlas.load(tmp_path / "other.html")
    with pytest.raises(FileSystemError, match="Cannot read"):
        atlas.load(tmp_path / "missing.html")


# -- the browser -------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """A browser that notes what it is to open. Temporary files lie in the folder of the test."""
    opened: list[str] = []
    monkeypatch.setenv("BROWSER", "yes")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return opened


def test_show_opens_a_page_that_stays(graph: Graph, browser: list[str]) -> None:
    path = graph.show(title="mine/../<b>")
    assert browser == [path.as_uri()]
    assert path.name == "mine-..-b.html"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert atlas.load(path).identical(graph)


def test_view_takes_whatever_holds_a_graph(graph: Graph, browser: list[str], tmp_path: Path) -> None:
    saved = graph.save(tmp_path / "step.atlas")
    with atlas.recording() as rec:
        torch.ones(2).exp()
    for item in (graph, saved, str(saved), rec, atlas.cost(graph), atlas.memory(graph)):
        assert len(load_pages(atlas.view(item))) == 1, item
    assert [name for name, _ in load_pages(atlas.view(graph, saved))] == ["Sequential", "step.atlas"]
    assert [name for name, _ in load_pages(atlas.view(atlas.compare(graph, graph)))] == ["before", "after"]
    assert "application/x-atlas" not in atlas.view().read_text().partition('<script type="application/json"')[0]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((nn.Linear(2, 2),), r"atlas\.view\(atlas\.capture\(model, x\)\)"),
        ((3,), "not int"),
        ((Graph(), Graph(), Graph()), "3 graphs do not fit"),
    ],
)
def test_what_view_cannot_show(items: tuple[Any, ...], message: str, browser: list[str]) -> None:
    with pytest.raises(InvalidInputError, match=message):
        atlas.view(*items)
    assert browser == []


def test_without_a_browser_a_warning_says_where_the_page_is(
    graph: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.warns(UserWarning, match=r"There is no browser .* The page is in .*\.html"):
        path = atlas.view(graph)
    assert path.is_file()


def test_old_pages_are_removed_and_nothing_else(browser: list[str], tmp_path: Path) -> None:
    for name in ("torchatlas-view-old", "other", "torchatlas-view-new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.html").write_text("x")
        if not name.endswith("new"):
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "torchatlas-view-link").symlink_to(tmp_path / "other")
    atlas.view()
    names = {path.name for path in tmp_path.iterdir()}
    assert "torchatlas-view-old" not in names
    assert {"other", "torchatlas-view-new", "torchatlas-view-link"} <= names
    assert (tmp_path / "other" / "page.html").exists()


# -- notebooks ---------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_the_viewer_in_a_frame_over_the_picture(graph: Graph) -> None:
    forms = graph._repr_mimebundle_()
    assert forms["text/plain"] == repr(graph)
    assert forms["image/svg+xml"] == graph._repr_svg_() == atlas.draw(graph, width=1200, height=800).svg
    assert forms["text/html"] == graph._repr_html_()
    elements = Elements(forms["text/html"])
    ((frame, _),) = elements.all("iframe")
    assert frame["sandbox"] == "allow-scripts allow-downloads allow-popups"
    assert frame["height"] == "600"
    inside = Elements(frame["srcdoc"] or "")
    assert [attributes["id"] for attributes, _ in inside.all("script") if "id" in attributes] == ["style", "document-0"]
    ((image, _),) = elements.all("img")
    assert (image["src"] or "").startswith("data:image/svg+xml;base64,")


def test_what_is_in_the_frame_is_the_page(graph: Graph, tmp_path: Path) -> None:
    found = re.search(r'srcdoc="([^"]*)"', graph._repr_html_())
    assert found
    assert unescape(found[1]) == graph.save(tmp_path / "step.html").read_text()


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_NODES"])
def test_a_large_graph_is_a_picture_in_a_notebook(graph: Graph, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"torchatlas.render.viewer.notebook.{limit}", 10)
    html = graph._repr_html_()
    assert "<iframe" not in html
    assert "graph.show()" in html
    assert "data:image/svg+xml" in html
    assert "<table" in html


def test_a_graph_that_cannot_be_written_is_a_picture_with_the_reason(graph: Graph) -> None:
    html = hostile_graph(NO_UNICODE)._repr_html_()
    assert "<iframe" not in html
    assert "There is no viewer of this graph: the page: not written, for it could not be read back" in html
    assert "data:image/svg+xml" in html

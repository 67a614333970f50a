"""The Markdown of a comparison, read by a Markdown parser: names are text, wherever they stand."""

from __future__ import annotations

import re

import pytest
import torch
from hostile import HOSTILE, forbidden
from torch import nn

import torchatlas as atlas
from torchatlas.render.markdown import code


def capture(*names: str, hidden: int = 8) -> atlas.Graph:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Sequential(nn.Linear(8, hidden), nn.Linear(hidden, 8)))
    return atlas.capture(model, torch.ones(2, 8))


def html_of(text: str) -> str:
    markdown = pytest.importorskip("markdown_it", reason="a parser of CommonMark with tables")
    rendered: str = markdown.MarkdownIt("commonmark", {"html": True, "linkify": False}).enable("table").render(text)
    return rendered


def test_what_a_pull_request_shows() -> None:
    found = atlas.compare(capture("a"), capture("a", "b", hidden=16))
    text = found.to_markdown(title="old → new", conditions=["flops>+1%", "structure", "ops>1000"], rows=4)
    assert text.startswith("### `old → new`\n\n**")
    assert "- `flops>+1%` `512 FLOPs -> 2.05 KFLOPs (+300 %)`" in text
    assert "Does not fail on: `ops>1000`" in text
    assert "| parameters | 144 | 560 | +289 % |" in text
    assert "| `b` | 0 → 4 (from zero) |" in text
    assert text.count("<details><summary>") == text.count("</details>") == 3
    assert re.search(r"<summary>6 modules with other figures</summary>\n\n\| module \|", text)
    assert "\nand 2 more\n" in text
    same = atlas.compare(capture("a"), capture("a")).to_markdown()
    assert "<details>" not in same
    assert "**the same" in same


def test_graphs_of_two_recorders_are_told_apart() -> None:
    one, other = capture("a"), capture("a")
    one.metadata["recorder"], other.metadata["recorder"] = "python", "native"
    assert "native=False" in atlas.compare(one, other).to_markdown()


@pytest.mark.parametrize(
    "name",
    [
        "@octocat",
        "a|b",
        "a`b",
        "``|`",
        "\\|x",
        "a\\",
        "<b>x</b>",
        "*x*",
        "[x](http://x)",
        "www.x|y",
        " ",
        "&amp;",
        HOSTILE,
    ],
)
def test_a_name_is_never_markup(name: str) -> None:
    name = name.replace(".", "")
    found = atlas.compare(capture("a"), capture("a", name))
    text = found.to_markdown(title=f"x {name}")
    assert not forbidden(text)
    rendered = html_of(text)
    prose = re.sub(r"<code>.*?</code>", "", rendered, flags=re.S)
    assert "octocat" not in prose
    assert not re.search(r"<(b|em|a|strong>x|script)\b", prose.replace("<strong>", ""))
    rows = re.findall(r"<tr>(.*?)</tr>", rendered, flags=re.S)
    assert {row.count("<td") for row in rows if "<td" in row} <= {4, 5}
    assert rendered.count("<table>") == 2


def test_a_code_element_is_read_back_as_the_text() -> None:
    import html

    for text in ("a|b", "`a`", "x\\", "layer1.0", "<i>", "@all", "&lt;"):
        found = re.search(r"<td[^>]*><code>(.*?)</code></td>", html_of(f"| a |\n|---|\n| {code(text)} |\n"))
        assert found
        assert html.unescape(found[1]) == text


def test_a_large_summary_fits_a_comment() -> None:
    names = [f"{'long_name_' * 30}{number}" for number in range(40)]
    text = atlas.compare(capture("a"), capture("a", *names)).to_markdown()
    assert len(text) < 60_000

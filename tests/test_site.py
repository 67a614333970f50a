"""The documentation site: what makes its pages, and the built site from a folder. `make docs` sets TORCHATLAS_SITE."""

from __future__ import annotations

import ast
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from browser import DESKTOP, PHONE, Visit, chromium
from test_docs import ROOT

from sitegen import api, check, commands, links, notebooks
from sitegen.navigation import completed
from sitegen.promised import promised_names
from torchatlas import errors
from torchatlas.cli import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_every_promised_name_has_an_entry_in_the_reference() -> None:
    pages = dict(api.pages())
    anchors = {f"{path}#{anchor}" for path, text in pages.items() for anchor in re.findall(r"\{ #(\S+) \}", text)}
    assert [place for place in api.addresses().values() if "#" in place and place not in anchors] == []
    assert {f"atlas.{name.name}" for name in promised_names() if name.module == "torchatlas"} <= api.addresses().keys()


def test_an_entry_has_signature_parameters_result_errors_and_example() -> None:
    text = dict(api.pages())["reference/recording.md"].split("## `atlas.capture`")[1].split("\n## ")[0]
    assert "    warmup: int = 0," in text
    assert re.search(r"^\| `track_tensor_ops` \| .*module calls", text, re.M)
    assert re.search(r"^\*\*Returns\*\* the graph", text, re.M)
    assert re.search(r"^- `InvalidModelError`: ", text, re.M)
    assert "```pycon\n>>> import torch, torchatlas as atlas\n" in text


def test_every_member_has_a_meaning() -> None:
    rows = [row for path, text in api.pages() for row in re.findall(r"^\| `\w+` \| `.*` \|.*\|$", text, re.M)]
    assert len(rows) > 500
    values = [row for row in rows if re.match(r"\| `[A-Z_]+` ", row)]  # of enumerations; their names say it
    assert [row for row in rows if row.endswith("|  |") and row not in values] == []


def test_every_error_has_an_entry() -> None:
    text = dict(api.pages())["reference/errors.md"]
    ours = [name for name, item in vars(errors).items() if getattr(item, "__module__", "") == errors.__name__]
    assert [name for name in ours if f"## {name} {{ #{name} }}" not in text] == []


def test_the_command_line_reference_has_every_verb_and_option() -> None:
    text = commands.page()
    context = click.Context(main)
    for verb in main.list_commands(context):
        command = main.get_command(context, verb)
        assert command is not None
        entry = text.split(f"{{ #{verb} }}")[1].split("\n## ")[0]
        shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
        assert [one.opts for one in shown if not any(name in entry for name in one.opts)] == []


def test_links_lead_to_the_pages_of_the_site() -> None:
    wanted: list[str] = []
    text = "[a](../SECURITY.md#the-viewer) [b](cost.md) [c](../src/torchatlas/units.py)\n\n```\n[d](cost.md)\n```\n"
    found = links.relinked(text, "viewer.md", wanted.append)
    assert (
        found
        == "[a](security.md#the-viewer) [b](cost.md) [c](source/src/torchatlas/units.py.md)\n\n```\n[d](cost.md)\n```\n"
    )
    assert "src/torchatlas/units.py" in wanted
    assert links.relinked("[a](docs/cost.md)", "index.md", wanted.append) == "[a](cost.md)"


def test_the_navigation_takes_what_there_is() -> None:
    nav = [
        {"Start": ["index.md", {"Soon": "later.md?"}]},
        {"Learn": [{"A": "learn/a.md?"}, "learn/*"]},
        {"Gone": ["gone.md?"]},
    ]
    pages = ["index.md", "learn/a.md", "learn/b.md", "learn/deep/c.md"]
    assert completed(nav, pages) == [{"Start": ["index.md"]}, {"Learn": [{"A": "learn/a.md"}, "learn/b.md"]}]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_are_the_example(path: Path) -> None:
    title, cells = notebooks.split(path.read_text())
    assert title
    assert len(cells) > 1
    module = ast.parse(path.read_text())
    assert ast.dump(ast.parse("\n".join(cells))) == ast.dump(ast.Module(module.body[1:], []))


def test_a_notebook_holds_what_its_cells_printed(tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text('"""Add."""\n\nimport math\n\nx = math.pi\n\nimport os\nprint(x + 1, os.getcwd() + "/a.html")\n')
    example = notebooks.run(script)
    cells = json.loads(example.notebook())["cells"]
    assert [cell["source"] for cell in cells[:3]] == ["# Add", "import math", "x = math.pi"]
    assert cells[-1]["outputs"][0]["text"] == "4.141592653589793 a.html\n"
    script.write_text('"""Fail."""\n\nimport math\n\nmath.sqrt(-1)\n')
    with pytest.raises(RuntimeError, match=r"sums\.py failed"):
        notebooks.run(script)
    script.write_text('"""End."""\n\nimport os\n\nos._exit(3)\n')
    with pytest.raises(RuntimeError, match="left no output"):
        notebooks.run(script)


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://elsewhere.example/a.js"></script>', "loads https://elsewhere.example/a.js"),
        ('<link rel="stylesheet" href="//elsewhere.example/a.css">', "loads //elsewhere.example/a.css"),
        ("<style>body { background: url(http://elsewhere.example/a.png) }</style>", "loads http"),
        ('<a href="gone.html">', "gone.html leads nowhere"),
        ('<a href="other.html#gone">', "other.html#gone leads nowhere"),
        ('<a href="other.html#here"><a href="https://elsewhere.example"><img src="data:,x">', None),
    ],
)
def test_the_check_sees_what_is_wrong(html: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "other.html").write_text('<h1 id="here">')
    found = check.problems(tmp_path)
    assert found == [] if problem is None else any(problem in line for line in found)


# -- the built site ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Path:
    if "TORCHATLAS_SITE" not in os.environ:
        pytest.skip("no site was built; `make docs` builds one and runs these")
    return ROOT / os.environ["TORCHATLAS_SITE"]


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_the_examples_printed_what_they_are_for(site: Path) -> None:
    for path in EXAMPLES:
        if (site / "examples" / f"{path.stem}.ipynb").exists():
            cells = json.loads((site / "examples" / f"{path.stem}.ipynb").read_text())["cells"]
            text = "".join(output["text"] for cell in cells for output in cell.get("outputs", ()))
        else:
            assert path.stem == "two_ranks"
            text = (site / "examples" / f"{path.stem}.html").read_text()
        assert len(text.splitlines()) >= 2, path.stem
        assert not re.search("Traceback|Warning", text), path.stem
        assert not re.search(rf"{ROOT}|{tempfile.gettempdir()}/", text), f"{path.stem} shows a folder of this machine"


@pytest.mark.parametrize("options", [{}, {"viewport": PHONE}, {"color_scheme": "dark"}], ids=["light", "phone", "dark"])
@pytest.mark.parametrize("page", ["index.html", "reference/recording.html", "live.html"])
def test_a_page_asks_for_files_alone(site: Path, browser: Browser, page: str, options: dict[str, Any]) -> None:
    visit = Visit.to(browser, site / page, **{"viewport": DESKTOP, **options})
    visit.page.wait_for_load_state("load")
    width = visit.page.evaluate("document.documentElement.scrollWidth")
    visit.close()
    assert [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert visit.errors == []
    assert width <= options.get("viewport", DESKTOP)["width"], "the page is wider than the window"


def test_search_finds_a_page_without_a_server(site: Path, browser: Browser) -> None:
    visit = Visit.to(browser, site / "index.html")
    visit.page.locator("input.md-search__input").click()
    visit.page.keyboard.type("checkpoint_plan")
    visit.page.locator(".md-search-result__link").first.wait_for()
    targets = [link.get_attribute("href") for link in visit.page.locator(".md-search-result__link").all()]
    visit.close()
    assert any(re.search(r"reference/memory\.html.*#checkpoint_plan$", target or "") for target in targets), targets
    assert visit.errors == []


def test_the_viewer_of_the_site_is_alive(site: Path, browser: Browser) -> None:
    visit = Visit.to(browser, site / "live" / "step.html")
    assert visit.wait_until_ready() == "yes"
    visit.close()
    visit.check()

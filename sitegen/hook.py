"""What mkdocs calls while it builds: it adds the pages that are made, completes the navigation and mends links."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from sitegen import api, commands, links, live, notebooks
from sitegen.navigation import completed
from sitegen.promised import ROOT

_made: dict[str, str | bytes] = {}  # page or file of the site -> what is in it
_addresses: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> None:
    _made.clear()
    _addresses.update(api.addresses())
    _made.update(api.pages())
    _made["reference/command-line.md"] = commands.page()
    for example in notebooks.examples():
        _made[f"examples/{example.name}.md"] = example.page()
        if not example.as_script:
            _made[f"examples/{example.name}.ipynb"] = example.notebook()
    _made["live.md"], _made["live/step.html"] = live.PAGE, live.viewer_html()
    _made["tasks.md"] = tasks()
    for file, page in links.PAGES.items():
        _made[page] = (ROOT / file).read_text()
    for asset in ("site.css", "iframe-worker.js"):
        _made[asset] = (ROOT / "sitegen" / asset).read_text()
    _relink()
    docs = Path(config.docs_dir)
    pages = [path.relative_to(docs).as_posix() for path in sorted(docs.rglob("*.md"))]
    pages += [page for page in _made if page.endswith(".md")]
    config.nav = completed(config.nav, pages)


def _relink() -> None:
    """Links of pages that are made, and a page for each file of the repository that any page links to."""
    wanted: list[str] = []
    for page in (*links.PAGES.values(), *links.MADE_OF_README):
        _made[page] = links.relinked(str(_made[page]), page, wanted.append)
    for path in (ROOT / "docs").rglob("*.md"):
        links.relinked(path.read_text(), path.relative_to(ROOT / "docs").as_posix(), wanted.append)
    for file in wanted:
        page = links.page_of(file)
        if page.startswith("source/"):
            _made[page] = links.source_page(file)


def on_nav(nav: Navigation, **_: Any) -> None:
    """The logo leads to the first page, which mkdocs finds by itself only outside of all sections."""
    nav.homepage = next(page for page in nav.pages if page.file.src_uri == "index.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in _made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    path = page.file.src_uri
    if path not in _made:
        markdown = links.relinked(markdown, path, lambda file: None)
    markdown = re.sub(r"^(<!-- .*? -->)\n(?=\|)", r"\1\n\n", markdown, flags=re.M)  # a table begins a paragraph
    # Code hosts take \\| in a cell's code for a bar; Python-Markdown takes a bar there for what it is.
    markdown = re.sub(r"^\|.*\|$", lambda row: re.sub(r"`[^`]+`", _bars, row[0]), markdown, flags=re.M)
    return re.sub(r"^```python\n(?=>>>)", "```pycon\n", markdown, flags=re.M)


def _bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def on_post_build(config: MkDocsConfig) -> None:
    (Path(config.site_dir) / "404.html").unlink()  # for servers: its links begin at a host


_CODE = re.compile(r"<a\b.*?</a>|<h\d.*?</h\d>|<pre\b.*?</pre>|<code>([\w.]+)(\([^<]*\))?</code>", re.S)


def on_page_content(content: str, page: Page, files: Files, **_: Any) -> str:
    """Names of the API that stand as code in a sentence lead to the reference."""
    here = page.file.src_uri

    def link(match: re.Match[str]) -> str:
        address = _addresses.get(match[1] or "")
        if address is None or here.startswith("source/"):
            return match[0]
        path, _, anchor = address.partition("#")
        file = files.get_file_from_path(path)
        assert file is not None, path
        url = "" if path == here else posixpath.relpath(file.url, posixpath.dirname(page.file.url) or ".")
        return f'<a class="name" href="{url}{"#" * bool(anchor)}{html.escape(anchor)}">{match[0]}</a>'

    return _CODE.sub(link, content)


def tasks() -> str:
    """The table of questions of README as a page of its own."""
    text = (ROOT / "README.md").read_text()
    table = text.split("## What do you want to know?")[1].split("\n## ")[0].strip()
    begin = "Every line goes on from [the ten lines](README.md#ten-lines) of the first page."
    return "\n\n".join(["# What do you want to know?", begin, *table.split("\n\n")[1:], ""])

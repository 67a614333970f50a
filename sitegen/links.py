"""Links of Markdown files in the repository -> links between pages of the site."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from sitegen.promised import ROOT

# Files outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples/index.md",
}
MADE_OF_README = ("tasks.md",)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")
_FENCE = re.compile(r"(^```.*?^```\n?|^    [^\n]*\n?)", re.S | re.M)  # code, fenced or indented


def source_of(page: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if page in MADE_OF_README:
        return "README.md"
    return next((file for file, made in PAGES.items() if made == page), f"docs/{page}")


def page_of(file: str) -> str:
    """The page of the site that shows a file of the repository."""
    if file in PAGES:
        return PAGES[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if re.fullmatch(r"examples/\w+\.py", file):
        return file.removesuffix(".py") + ".md"
    return f"source/{file.lstrip('.')}.md"  # mkdocs leaves out what begins with a dot


def relinked(markdown: str, page: str, also: Callable[[str], None]) -> str:
    """The text with its links as the page needs them. `also` is told of every file that has to become a page."""
    folder = posixpath.dirname(source_of(page))

    def link(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        text = _LINK.sub(link, text)
        file = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / file).exists():
            return f"{image}[{text}]({target}{anchor or ''})"  # mkdocs says that it leads nowhere
        also(file)
        return f"{image}[{text}]({os.path.relpath(page_of(file), posixpath.dirname(page) or '.')}{anchor or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(link, part) for number, part in enumerate(parts))


def source_page(file: str) -> str:
    """A file of the repository as a page, or what is in a folder of it."""
    path = ROOT / file
    head = f"---\nsearch:\n  exclude: true\n---\n# {file}\n\n"
    if path.is_dir():
        rows = [f"| `{one.name}` | {_first_line(one)} |" for one in sorted(path.iterdir()) if one.name[0] not in "._"]
        return head + "\n".join(["| file | |", "|---|---|", *rows]) + "\n"
    language = {".py": "python", ".md": "markdown"}.get(path.suffix, "text")
    return f"{head}````{language}\n{path.read_text()}````\n"


def _first_line(path: Path) -> str:
    """What a Python file, or a package, says of itself."""
    path = path / "__init__.py" if path.is_dir() else path
    if path.suffix != ".py" or not path.exists():
        return ""
    text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

"""Every Python block in README and docs runs, in order, one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[int, str]]:
    text = page.read_text()
    return [(text[: m.start()].count("\n") + 2, m[1]) for m in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M)]


STARTING = ("distributed.md", "pipeline.md")  # other processes, or threads of torch that talk to them
RUN = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.child] * (page.name in STARTING))
    for page in PAGES
]
NEEDED = {"distributed.md": "fake-collectives"}  # a row of docs/versions.md, by the page whose code needs it


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in NEEDED:
        support.needs(NEEDED[page.name])
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    for line, code in blocks(page):
        if code.lstrip().startswith(">>>"):
            continue  # pytest's own doctest runs these
        padded = "\n" * (line - 1) + code  # so that a traceback points into the page
        exec(compile(padded, str(page), "exec"), namespace)
    if page.parent == ROOT / "docs/learn/tutorial":  # its pages draw the pictures that they show
        for name in re.findall(r"\]\(pictures/([^)]+)\)", page.read_text()):
            again = "this picture is old: python docs/learn/tutorial/pictures.py"
            assert texts_of(page.parent / "pictures" / name) == texts_of(tmp_path / name), again


def texts_of(picture: Path) -> list[str]:
    """What is written in a picture, wherever it stands; the numbers that export gives to symbols differ by version."""
    texts = re.findall(r"<text[^>]*>([^<]*)", picture.read_text())
    return sorted(re.sub(r"\bs\d+\b", "s", text) for text in texts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)  # in code, layers[0](x) is no link
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert (page.parent / target).exists(), target

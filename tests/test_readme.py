"""README: the code in its tables runs and answers, its links lead somewhere, and the package carries it."""

from __future__ import annotations

import email
import re
import shlex
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hatchling import build
from test_docs import ROOT, blocks

import torchatlas as atlas
from torchatlas.cli import main

README = ROOT / "README.md"
TEXT = README.read_text()
QUESTIONS = TEXT.split("## What do you want to know?")[1].split("\n## ")[0]
ANSWERS = re.findall(r"^\| (.+?) \| `(.+?)` \| \[.+?\]\(.+?\) \|$", QUESTIONS, re.M)
LINKS = re.findall(r"\]\(([^)]+)\)", TEXT)
SCRIPT = """
import torch
x = torch.ones(2, requires_grad=True)
y = x.exp()
if {broken}:
    y += 1
y.sum().backward()
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the code above the table has defined, in a folder with a train.py whose backward fails."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT.format(broken=True))
    namespace: dict[str, Any] = {"__name__": "page"}
    for _, code in blocks(README):
        exec(compile(code, "README.md", "exec"), namespace)
    return namespace


def test_the_ten_lines_are_ten() -> None:
    ((_, code),) = blocks(README)
    assert len([line for line in code.splitlines() if line]) == 10


def test_every_row_of_the_questions_has_code_and_a_page() -> None:
    assert len(ANSWERS) == len(re.findall(r"^\| ", QUESTIONS, re.M)) - 1, (
        "a row is not | question | `code` | [page](link) |"
    )


@pytest.mark.parametrize(("question", "code"), [row for row in ANSWERS if not row[1].startswith("torchatlas ")])
def test_a_line_of_python_runs(
    question: str, code: str, page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    result = eval(code, page)
    assert result is not None or capsys.readouterr().out.strip(), f"{question} nothing is answered"


def line_for(question: str) -> str:
    (code,) = [code for asked, code in ANSWERS if question in asked]
    return code


def test_the_line_for_a_missing_gradient_names_the_parameter(
    page: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    page["model"].linear1.register_forward_hook(lambda module, args, output: output.detach())
    capsys.readouterr()
    eval(line_for("gradient None"), page)
    assert "error[no-gradient]: linear1.weight" in capsys.readouterr().out


def test_the_line_for_a_backward_that_fails_names_the_line(page: dict[str, Any]) -> None:
    verb, *arguments = shlex.split(line_for("backward fail"))
    result = CliRunner().invoke(main, arguments)
    assert verb == "torchatlas"
    assert result.exit_code == 1, result.output  # the script itself failed
    assert "error[in-place]" in result.stdout
    assert "train.py:6" in result.stdout


def test_the_line_that_stops_inside_backward_does(page: dict[str, Any]) -> None:
    Path("train.py").write_text(SCRIPT.format(broken=False))
    result = CliRunner().invoke(main, shlex.split(line_for("stop inside"))[1:], input="step\nquit\n")
    assert "SumBackward0" in result.output, result.output


def test_the_line_that_asks_whether_it_fits_knows_the_peak_of_the_real_step(page: dict[str, Any]) -> None:
    real = atlas.capture(page["model"], page["x"], optimizer=torch.optim.AdamW)
    assert eval(line_for("Will it fit"), page) == real.peak_bytes


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("link", [link for link in LINKS if "#" in link])
def test_a_link_into_a_page_finds_its_heading(link: str) -> None:
    path, _, anchor = link.partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(), re.M)
    assert anchor in [slug(heading) for heading in headings]


def test_every_page_can_be_reached() -> None:
    linked = {link.partition("#")[0] for link in LINKS}
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if f"docs/{page.name}" not in linked] == []


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Message:
    """What a wheel built from here says of itself. hatchling refuses classifiers that package indexes do not know."""
    monkeypatch.chdir(ROOT)
    folder = build.prepare_metadata_for_build_wheel(str(tmp_path))
    return email.message_from_bytes((tmp_path / folder / "METADATA").read_bytes())


def test_the_wheel_carries_the_readme(metadata: Message) -> None:
    body = metadata.get_payload(decode=True)
    assert isinstance(body, bytes)
    assert body.decode() == TEXT
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_wheel_says_in_one_sentence_what_the_readme_says(metadata: Message) -> None:
    sentence = " ".join(re.search(r"\*\*(.+?)\*\*", TEXT, re.S)[1].split())  # type: ignore[index]
    assert sentence.lower() == f"torchatlas {metadata['Summary']}".lower()


def test_links_are_relative_until_there_is_an_address(metadata: Message) -> None:
    """A package index knows no files beside the text: whoever gives the project an address makes links absolute."""
    relative = [link for link in LINKS if not link.startswith("https://")]
    assert bool(relative) != bool(metadata.get_all("Project-URL"))

"""torchatlas view: pages of files and targets, the server of a folder, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.export.html import load_pages


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "view_models.py").write_text(
        "from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n\n"
        "def never():\n    print('the model ran')\n    return build()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []
    monkeypatch.setenv("BROWSER", "yes")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    return opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    return atlas.capture(model, torch.randn(4, 8), backward=True).save(tmp_path / "step.atlas")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["view", *arguments])


def names(path: str | Path) -> list[str]:
    return [name for name, _ in load_pages(Path(path))]


def test_a_file_becomes_a_page(file: Path, folder: Path) -> None:
    result = run(str(file), "-o", "step.html")
    assert (result.exit_code, result.stdout) == (0, "written: step.html\n")
    assert atlas.load("step.html").identical(atlas.load(file))
    assert names("step.html") == ["step.atlas"]


def test_the_page_is_opened_in_the_browser(file: Path, browser: list[str]) -> None:
    result = run(str(file), "--json")
    facts = json.loads(result.stdout)
    assert browser == [Path(facts["file"]).as_uri()]
    assert facts["opened"] is True
    assert names(facts["file"]) == ["step.atlas"]
    assert run(str(file), "--no-browser").stdout.startswith("written: ")
    assert len(browser) == 1


def test_two_files_are_compared(file: Path, folder: Path) -> None:
    other = atlas.capture(nn.ReLU(), torch.randn(2)).save(folder / "other.json")
    assert run(str(file), str(other), "-o", "both.html", "--title", "two").exit_code == 0
    assert names("both.html") == ["step.atlas", "other.json"]
    assert run("both.html", "-o", "again.html").exit_code == 0
    assert names("again.html") == ["step.atlas", "other.json"]


def test_a_target_is_run_with_its_gradients(folder: Path) -> None:
    result = run("view_models:build", "--inputs", "3,4", "--backward", "-o", "m.html", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"file": "m.html", "graphs": 1, "opened": False}
    assert names("m.html") == ["Linear"]
    assert "backward" in {str(node.phase) for node in atlas.load("m.html")}


def test_without_a_file_the_viewer_is_empty(folder: Path) -> None:
    result = run("-o", "viewer.html")
    assert result.exit_code == 0
    assert "application/x-atlas" not in (folder / "viewer.html").read_text().partition('id="style"')[0]
    assert run("viewer.html", "-o", "again.html").exit_code == 2


def test_numbers_of_a_file_are_laid_over_the_graph(file: Path, folder: Path) -> None:
    (folder / "scores.json").write_text('{"0": 0.5, "2": 2}')
    plain, overlaid = run(str(file), "-o", "a.html"), run(str(file), "--overlay", "scores.json", "-o", "b.html")
    assert (plain.exit_code, overlaid.exit_code) == (0, 0), overlaid.output
    assert (folder / "a.html").read_bytes() != (folder / "b.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["step.atlas", "-o", "step.png"], "the viewer is a page"),
        (["view_models:never", "-o", "no/folder.html"], "the folder no does not exist"),
        (["missing.atlas"], "Cannot read missing.atlas"),
        (["step.atlas", "step.atlas", "step.atlas"], "3 graphs do not fit side by side"),
        (["step.atlas", "--backward"], "--backward is for models that are run now"),
        (["step.atlas", "--overlay", "no.json"], "Cannot read no.json"),
        (["step.atlas", "--overlay", "list.json"], "an overlay is numbers by name"),
        (["step.atlas", "--overlay", "view_models.py"], "not readable as JSON"),
        ([".", "-o", "x.html"], ". is a folder, which is served by itself"),
        ([".", "step.atlas"], ". is a folder"),
    ],
)
def test_what_is_refused(file: Path, folder: Path, arguments: list[str], message: str) -> None:
    (folder / "list.json").write_text("[1]")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "the model ran" not in result.output
    assert not list(folder.glob("*.html"))


def served(*arguments: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "BROWSER")}
    command = [sys.executable, "-m", "torchatlas", "view", *arguments, "--json"]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # A shell that starts tests in the background makes them, and all they start, deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_the_address_of_the_server_is_no_argument_of_the_browser(
    folder: Path, browser: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchatlas.render.viewer.server.CaptureServer.wait", lambda server: None)
    facts = json.loads(run(str(folder), "--json").stdout)
    (opened,) = browser
    assert facts["opened"]
    assert opened.startswith("file://")
    page = Path(opened.removeprefix("file://"))
    assert f'content="0;url={facts["url"]}"' in page.read_text()
    assert page.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.child
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_folder_is_served_until_it_is_ended(file: Path, folder: Path, number: signal.Signals) -> None:
    with served(str(folder)) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        with urllib.request.urlopen(facts["url"] + "captures.json", timeout=30) as answer:
            assert [one["name"] for one in json.loads(answer.read())["captures"]] == ["step.atlas"]
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "", "")


def test_a_file_too_large_for_a_page_is_served(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("torchatlas.cli.view.MOST_INLINE_BYTES", 10)
    monkeypatch.setattr(
        "torchatlas.cli.view._serve", lambda captures, *rest: asked.append([one.name for one in captures.listed()])
    )
    assert run(str(file)).exit_code == 0
    assert asked == [["step.atlas"]]
    assert run(str(file), "-o", "large.html").exit_code == 0  # who wants a page gets one
    assert names("large.html") == ["step.atlas"]

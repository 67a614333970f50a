"""torchatlas learn: the list, a lesson at a terminal and without one, its page, and what is kept."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.learn.catalogue import lessons

SOURCE = Path(atlas.__file__).resolve().parents[1]
OWN = "# Mine\nminutes: 1\n\nText.\n\n> What?\n\n```python\nprint(6 * 7)\n```\n\n```text\n{}\n```\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHATLAS_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "lessons.json"


def learn(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["learn", *arguments])


def test_the_list(state: Path) -> None:
    state.parent.mkdir()
    state.write_text(json.dumps({"done": {"first-graph": {"date": "2026-11-18", "right": 1, "asked": 1}}}))
    text = learn().stdout
    for number, lesson in enumerate(lessons(), 1):
        done = " +✓" if number == 1 else "$"
        assert re.search(rf"^ *{number}  {lesson.name} .*  {lesson.minutes}{done}", text, re.MULTILINE), lesson.name
    assert f"1 of {len(lessons())} done. Next: torchatlas learn who-made-this-tensor" in text
    listed = json.loads(learn("--json").stdout)
    assert listed["record"] == str(state)
    assert [each["name"] for each in listed["lessons"]] == [lesson.name for lesson in lessons()]
    assert [each["done"] for each in listed["lessons"][:2]] == ["2026-11-18", None]


def test_without_a_terminal_nobody_is_asked_and_nothing_is_kept(state: Path) -> None:
    for arguments in (["first-graph"], ["1", "--all"]):
        result = learn(*arguments)
        assert result.exit_code == 0
        assert "What is its node called?\n  │ MulBackward0" in result.stdout
        assert "your answer" not in result.stdout
        assert "\x1b" not in result.stdout
    assert not state.exists()


def test_a_lesson_as_json() -> None:
    content = json.loads(learn("data-write", "--json").stdout)
    assert content["as_expected"] is True
    (lesson,) = content["lessons"]
    assert [step["findings"] for step in lesson["steps"]] == [["data-write"], [], None]
    assert lesson["steps"][1]["printed"] == "tensor([1.6487, 0.0000])\n"


def test_what_is_not_so_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text(OWN.format(42))
    assert learn("mine.md").exit_code == 0
    (tmp_path / "mine.md").write_text(OWN.format(43))
    result = learn("mine.md")
    assert result.exit_code == 1
    assert "The lesson says something else" in result.stdout
    assert "Not as the lesson says: mine." in result.stderr
    result = learn("mine.md", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["as_expected"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["not-zerod"], "There is no lesson 'not-zerod'; did you mean not-zeroed?"),
        (["nothing.md"], "Cannot read nothing.md: No such file or directory."),
        (["--page"], "Name the lesson: torchatlas learn LESSON --page."),
        (["hooks", "-o", "page.txt"], "page.txt: the viewer is a page; give it the suffix .html."),
        (["mine.md", "--page", "--no-browser"], "The lesson mine has no page."),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "mine.md").write_text(OWN.format(42))
    result = learn(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_the_page(tmp_path: Path) -> None:
    content = json.loads(learn("hooks", "-o", "hooks.html", "--no-browser", "--json").stdout)
    assert content["link"] == f"{(tmp_path / 'hooks.html').as_uri()}#pane=backward&moment=1&select=n1"
    assert len(atlas.load(tmp_path / "hooks.html")) == 3
    text = learn("hooks", "--page", "--no-browser").stdout
    assert re.fullmatch(r"open it in a browser: file:///\S+/hooks\.html#pane=backward&moment=1&select=n1\n", text)


def test_reset(state: Path) -> None:
    assert learn("--reset").stdout == "Nothing was done yet; nothing to forget.\n"
    state.parent.mkdir()
    done = {name: {"date": "2026-11-18"} for name in ("hooks", "order", "in-place")}
    state.write_text(json.dumps({"done": done}))
    assert learn("hooks", "--reset").stdout == "Forgotten: hooks.\n"
    assert json.loads(learn("--reset", "--json").stdout)["reset"] == ["order", "in-place"]
    assert json.loads(state.read_text())["done"] == {}


def test_a_folder_that_cannot_be_used_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHATLAS_STATE", str(tmp_path / "file"))
    result = learn()
    assert result.exit_code == 0
    assert result.stderr.count("What was done is not kept: cannot read") == 1


# -- a terminal --------------------------------------------------------------------------------------------------------

_SEVERAL = """
import os, sys
from torchatlas.cli import main
for arguments, variables in eval(sys.argv[1]):
    os.environ.update(variables)
    try:
        main(["learn", *arguments])
    except SystemExit as ended:
        print("-- ended with", ended.code)
"""


def at_terminal(calls: list[tuple[list[str], dict[str, str]]], keys: list[str]) -> list[str]:
    """Run the verb several times in one process. Each key is typed at the next prompt. What each call showed."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _SEVERAL, repr(calls)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "PYTHONPATH": str(SOURCE)},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    text, waiting = "", list(keys)
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed: Linux says so by an error
            break
        if not part:
            break
        text += part.decode("utf-8", "replace")
        if waiting and re.search(r"(just see|runs it)[^\n]*: $", text):
            _until_it_waits(process)
            os.write(ours, waiting.pop(0).encode())
    os.close(ours)
    assert process.wait() == 0, text
    assert not waiting, text
    shown = text.replace("\r\n", "\n").split("-- ended with")
    return [f"{one}-- ended with{rest.split()[0]}" for one, rest in pairwise(shown)]


def _until_it_waits(process: subprocess.Popen[bytes]) -> None:
    """Python does not see a Ctrl-C that comes after it has printed a prompt and before it waits for keys."""
    state = Path(f"/proc/{process.pid}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] == "R":
        time.sleep(0.001)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C comes as a signal
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a test run in the background ignores, and what it starts, too


def test_a_terminal(state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "mine.md").write_text(OWN.format(42))
    calls: list[tuple[list[str], dict[str, str]]] = [
        (["first-graph"], {}),
        (["data-write"], {"NO_COLOR": "1"}),
        (["hooks"], {}),
        (["hooks"], {}),
        ([], {}),
        (["mine.md"], {"TORCHATLAS_STATE": str(tmp_path / "file")}),
    ]
    keys = ["mul\n", "7\n", "3\n", "\n", "5\n", "\n", "7\n", "\x03", "\x04", "42\n"]
    whole, line, interrupted, ended, listed, unkept = at_terminal(calls, keys)

    assert whole.count("Right.") == 2
    assert "Not so: you said 7." in whole
    assert "Done. Right: 2 of 3." in whole
    assert re.search(r"Look at it in a browser:\n  file:///\S+", whole)
    assert "Next: torchatlas learn who-made-this-tensor" in whole
    assert "\x1b[1m" in whole
    assert whole.endswith("-- ended with0")

    assert "Right." in line  # the fifth line is the one that the mended program changes
    assert "The doctor finds nothing." in line
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", line)

    for left in (interrupted, ended):  # by Ctrl-C, by Ctrl-D
        assert "Left before the end. To start again: torchatlas learn hooks" in left
        assert "Traceback" not in left
        assert left.endswith("-- ended with130")

    assert listed.count("✓") == 2
    done = json.loads(state.read_text())["done"]
    assert list(done) == ["first-graph", "data-write"]
    assert (done["first-graph"]["right"], done["first-graph"]["asked"]) == (2, 3)

    assert "Right." in unkept
    assert unkept.count("is not kept") == 1
    assert unkept.endswith("-- ended with0")

"""Files, models and programs of strangers: no verb lets them control the terminal.

Verbs are read from the command line itself, and their options with them: a new verb is tested, or says here why not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hostile import FILE_NAME, HOSTILE, MARK, OURS, PROGRAM, forbidden, hostile_graph, hostile_model

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.errors import AtlasError
from torchatlas.graph import Graph

pty = pytest.importorskip("pty")  # where there is none, Windows, files cannot be named so either
VERBS = {name: main.get_command(click.Context(main), name) for name in main.list_commands(click.Context(main))}
SOURCE = Path(atlas.__file__).resolve().parents[1]  # the folder is another one then
FILES = ("graph.atlas", "graph.json", "traced.atlas", "replay.atlas")
GIVEN = {
    "file": "graph.atlas",
    "files": "graph.atlas",
    "before": "graph.atlas",
    "after": "replay.atlas",
    "target": ".py:build",
    "names": ".py:build",
    "script": ".py",
    "lesson": ".md",
    "trace": "own.trace.json",
}
NEEDED = {
    "checkpoint": ["--limit", "1GB"],
    "convert": ["-o", f"{FILE_NAME}.csv"],
    "debug": ["-c", "where", "-c", "grads", "-c", "order", "-c", "run"],
    "draw": ["-o", f"{FILE_NAME}.svg"],
    "view": ["--no-browser", "-o", f"{FILE_NAME}.html"],
}
QUIET = {
    "checkpoint": "a step too small for anything to be named",
    "record": "counts steps and names the folder, which the user chose",
    "validate": "torch.fx refuses such names",
    "verify": "counts; only what differs is named",
}
ONE_LINE = HOSTILE.replace("\n", "")
LESSON = (
    f"# {ONE_LINE}\nminutes: 1\n\n{HOSTILE}\n\n> {ONE_LINE}\n\n"
    f"```python\nprint({HOSTILE!r})\n```\n\n```text\n...\n```\n"
)
WITHOUT = {
    "completion": "prints a script of click's, with our name in it",
    "demo": "runs a model of ours, and writes files named by us",
    "native": "builds code of ours, and names files that we name",
    "selftest": "runs models of ours, and names nothing else",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("strangers")
    graph = hostile_graph()
    graph.save(path / f"{FILE_NAME}graph.atlas")
    profile = graph.save(path / f"{FILE_NAME}own.trace.json")
    trace = json.loads(profile.read_text("utf-8"))
    trace["traceEvents"].append({"ph": "X", "cat": "kernel", "name": HOSTILE, "ts": 0, "dur": 1})
    profile.write_text(json.dumps(trace), "utf-8")
    hostile_graph(operations=False).save(path / f"{FILE_NAME}graph.json")
    model, example = hostile_model(HOSTILE)
    atlas.trace(model, example).save(path / f"{FILE_NAME}traced.atlas")
    atlas.capture(model, example, backward=True, values="replay").save(path / f"{FILE_NAME}replay.atlas")
    (path / f"{FILE_NAME}.py").write_text(PROGRAM, "utf-8", newline="\n")
    (path / f"{FILE_NAME}.md").write_text(LESSON, "utf-8", newline="\n")
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


def check(*arguments: str) -> str:
    """Run a verb; what it printed, which must be safe."""
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), traceback.format_exception(
        result.exception
    )
    text = result.output
    assert not forbidden(text), (arguments, ascii(forbidden(text)), ascii(text[:2000]))
    return text


def given(verb: str) -> list[str]:
    names = [one.name for one in VERBS[verb].params if isinstance(one, click.Argument) and one.name != "arguments"]
    return [*NEEDED.get(verb, ()), *(FILE_NAME + GIVEN[name] for name in names)]


def choices(verb: str) -> Iterator[list[str]]:
    """Every value of every option of a verb that has a list of them."""
    for option in VERBS[verb].params:
        if isinstance(option, click.Option) and isinstance(option.type, click.Choice):
            yield from ([option.opts[0], str(choice)] for choice in option.type.choices)


def takes_file(verb: str) -> bool:
    return any(one.name in ("file", "before") for one in VERBS[verb].params)


def test_every_verb_is_tested_or_says_why_not() -> None:
    for verb, command in VERBS.items():
        names = {one.name for one in command.params if isinstance(one, click.Argument)} - {"arguments"}
        assert (verb in WITHOUT) is not bool(names and names <= GIVEN.keys()), (verb, names)


def test_verbs_print_in_one_place() -> None:
    for path in (SOURCE / "torchatlas" / "cli").glob("*.py"):
        calls = re.findall(r"click\.s?echo|\bprint\(|std(?:out|err)\.write", path.read_text("utf-8"))
        assert not calls or path.name == "_options.py", path.name


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in WITHOUT])
def test_verbs_print_nothing_that_a_terminal_obeys(verb: str, folder: Path) -> None:
    text = check(verb, *given(verb))
    assert MARK in text or verb in QUIET
    if verb != "debug":  # a conversation
        text = CliRunner().invoke(main, [verb, "--json", *given(verb)]).stdout
        assert not forbidden(text)
        assert json.loads(text)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if takes_file(verb)])
def test_files_of_all_kinds_with_all_options(verb: str, folder: Path) -> None:
    for file in FILES:
        arguments = [FILE_NAME + file if one.endswith("graph.atlas") else one for one in given(verb)]
        for more in ([], ["--json"], ["--traceback"]):
            check(verb, *more, *arguments)
    for option in choices(verb):
        check(verb, *option, *given(verb))


@pytest.mark.parametrize("verb", [verb for verb in VERBS if any(one.name == "file" for one in VERBS[verb].params)])
def test_a_model_in_place_of_a_file(verb: str, folder: Path) -> None:
    check(verb, FILE_NAME + ".py:build")


@pytest.mark.parametrize("verb", ["capture", "doctor", "debug"])
@pytest.mark.parametrize("ending", ["fail", "exit"])
def test_scripts_that_fail(verb: str, ending: str, folder: Path) -> None:
    check(verb, *NEEDED.get(verb, ()), f"{FILE_NAME}.py", ending)


def test_functions_that_fail(folder: Path) -> None:
    for more in ([], ["--traceback"], ["--json"]):
        check("capture", *more, f"{FILE_NAME}.py:broken")


@pytest.mark.parametrize("verb", VERBS)
def test_hostile_arguments(verb: str, folder: Path) -> None:
    for arguments in ([f"--{HOSTILE}"], [HOSTILE], [HOSTILE] * 4, [f"{HOSTILE}.atlas"], [f"{HOSTILE}.py"]):
        result = CliRunner().invoke(main, [verb, *arguments])
        assert not forbidden(result.output), ascii(result.output)


def test_hostile_verbs_and_options() -> None:
    assert MARK in check(HOSTILE)
    assert MARK in check("--" + HOSTILE.lstrip("="))


# -- files that are refused -------------------------------------------------------------------------------------------


def _refused(folder: Path) -> Iterator[Path]:
    """Files that are wrong in a place that is named by whoever wrote them."""
    good = folder / f"{FILE_NAME}graph.atlas"
    names = zipfile.ZipFile(good).namelist()
    for number, name in enumerate([HOSTILE, f"{HOSTILE}.npy", f"columns/{HOSTILE}.npy", f"../{HOSTILE}", names[0]]):
        path = folder / f"{FILE_NAME}{number}.atlas"
        path.write_bytes(good.read_bytes())
        with (
            zipfile.ZipFile(path, "a") as archive,
            pytest.warns(UserWarning, match="Duplicate") if name in names else nullcontext(),
        ):
            archive.writestr(name, HOSTILE)
        yield path
    for number, name in enumerate(names):
        path = folder / f"{FILE_NAME}without{number}.atlas"
        with zipfile.ZipFile(good) as old, zipfile.ZipFile(path, "w") as new:
            for one in names:
                new.writestr(one if one != name else HOSTILE, old.read(one) if one != name else HOSTILE)
        yield path
    text = (folder / f"{FILE_NAME}graph.json").read_text("utf-8")
    content = json.loads(text)
    for key in content:
        for wrong in (HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE], [{HOSTILE: HOSTILE}]):
            path = folder / f"{FILE_NAME}wrong.json"
            path.write_text(json.dumps(content | {key: wrong}), "utf-8")
            yield path
    whole = (json.dumps({HOSTILE: 1}), json.dumps(HOSTILE), "[" * 9999)
    for number, wrong in enumerate([HOSTILE, f'{{"{HOSTILE}', *whole]):
        path = folder / f"{FILE_NAME}broken{number}.json"
        path.write_text(wrong, "utf-8")
        yield path
    for suffix in ("", ".json", ".atlas", f".{HOSTILE}"):
        yield folder / f"{FILE_NAME}absent{suffix}"


def test_messages_about_files_are_safe(folder: Path) -> None:
    refused = 0
    for path in _refused(folder):
        check("summary", str(path))
        check("summary", "--traceback", str(path))
        try:
            Graph.load(path)
        except AtlasError as error:
            refused += 1
            text = "".join(traceback.format_exception(error))  # as Python shows it, with its causes
            assert not forbidden(text), ascii(text[-3000:])
    assert refused > 20


# -- a terminal -------------------------------------------------------------------------------------------------------

_ALL = """
import sys, warnings
from torchatlas.cli import main
for arguments in eval(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit:
        print("\\n-- end of", arguments[0])
"""


def test_a_real_terminal(folder: Path) -> None:
    """With colours and progress: what is ours is taken away, exactly, and nothing else may be left."""
    verbs = [verb for verb in VERBS if takes_file(verb)]
    calls = [[verb, *given(verb)] for verb in verbs] + [["doctor", f"{FILE_NAME}.py"], ["summary", HOSTILE]]
    calls += [["table", "--bars", "time", *given("table")]]
    text = _in_terminal([sys.executable, "-c", _ALL, repr(calls)])
    assert "\x1b[1m" in text  # it took itself for a terminal
    assert text.count("-- end of") == len(calls)
    plain = OURS.sub("", text.replace("\r\n", "\n"))
    assert not forbidden(plain), ascii(forbidden(plain))
    assert MARK in plain
    assert "[red]" in plain  # no markup


def _in_terminal(command: list[str]) -> str:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200", "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, close_fds=True)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end was closed: Linux says so by an error
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    text = b"".join(parts).decode("utf-8")
    assert process.wait() == 0, ascii(text[-2000:])
    return text

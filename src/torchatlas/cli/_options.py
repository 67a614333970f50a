"""What verbs share: options, how errors and results are printed, progress on a terminal."""

from __future__ import annotations

import ast
import functools
import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from traceback import StackSummary, TracebackException, format_exception
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from torchatlas.analysis.totals import summarize
from torchatlas.errors import AtlasError, FileFormatError
from torchatlas.escapes import clean_text
from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS, check_folder, suffix_of, with_rank
from torchatlas.progress_line import ProgressLine

OUR_FAILURE, THEIR_FAILURE = 2, 1
Function = TypeVar("Function", bound=Callable[..., Any])
_NOT_THE_SCRIPTS = (os.path.dirname(os.path.dirname(__file__)) + os.sep, "<plan of ", "<frozen runpy>")


# -- options -----------------------------------------------------------------------------------------------------------


def complete_files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for FILE|TARGET: files, and after "path.py:" the functions and classes in it."""
    path, colon, begun = incomplete.partition(".py:")
    if not colon:
        return [CompletionItem(incomplete, type="file")]
    try:
        body = ast.parse(Path(f"{path}.py").read_text("utf-8")).body  # read, not run
    except (OSError, ValueError, SyntaxError):
        return []
    names = [item.name for item in body if isinstance(item, (ast.FunctionDef, ast.ClassDef))]
    return [CompletionItem(f"{path}.py:{name}") for name in names if name.startswith(begun)]


def _complete_devices(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from torchatlas.analysis.devices import DEVICES

    return [CompletionItem(name) for name in ("here", *DEVICES) if name.startswith(incomplete)]


file_argument = click.argument("file", type=click.Path(path_type=Path))
target_argument = click.argument("target", shell_complete=complete_files)
inputs_option = click.option(
    "--inputs",
    multiple=True,
    metavar="SHAPE",
    help="An example input for a TARGET: [NAME=][DTYPE:]SHAPE, such as 2,3,224,224 or int64:2,16. Repeatable.",
)
device_option = click.option(
    "--device",
    shell_complete=_complete_devices,
    help='A device profile, such as "a100-80gb"; "here" measures this machine.  [default: generic]',
)
allow_option = click.option(
    "--allow", multiple=True, metavar="OPERATOR", help="Also run this operator, or all of a namespace. Repeatable."
)
optimizer_option = click.option(
    "--optimizer", metavar="NAME", help="Also run a step of this optimizer of torch.optim, such as AdamW."
)


def output_option(text: str, **attributes: Any) -> Callable[[Function], Function]:
    """The file to write."""
    kind = click.Path(path_type=Path)
    return click.option("--output", "-o", type=kind, metavar="FILE", help=text, **attributes)


def script_command(function: Callable[..., Any]) -> click.Command:
    """A verb that runs a SCRIPT; all that follows the script is the script's own."""
    arguments = click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
    command = click.command(context_settings={"allow_interspersed_args": False})
    return command(click.argument("script")(arguments(function)))


def count_option(name: str, text: str, default: int | None = None, least: int = 0) -> Callable[[Function], Function]:
    """An option that takes a whole number."""
    kind = click.IntRange(min=least)
    return click.option(name, type=kind, default=default, show_default=True, metavar="N", help=text)


def old_option(old: str, new: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Accept an option by its old name, too, for one minor version; stderr says what it is called now."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(old, "old_value", hidden=True, **attributes)
        @functools.wraps(function)
        def run(*args: Any, old_value: Any, **kwargs: Any) -> Any:
            if old_value is not None:
                echo(f"{old} is now called {new}; the old name goes with the next minor version.", err=True)
                kwargs[new.removeprefix("--").replace("-", "_")] = old_value
            return function(*args, **kwargs)

        return run

    return decorate


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options every verb has, and errors as one line: exit code 2 for ours, 1 for those of the program it ran."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
    @click.option("--traceback", is_flag=True, help="Show the whole traceback of an error.")
    @functools.wraps(function)
    def run(*args: Any, as_json: bool, traceback: bool, **kwargs: Any) -> Any:
        try:
            return function(*args, as_json=as_json, **kwargs)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except SystemExit as ended:
            if ended.code is None or isinstance(ended.code, int):
                raise
            echo(str(ended.code), err=True)  # as Python does
            raise SystemExit(THEIR_FAILURE) from None
        except Exception as error:
            if isinstance(error, BrokenPipeError) and _nobody_reads():
                raise  # torchatlas learn | head: click ends without a word
            failure = _as_line(error)
            if traceback:
                echo("".join(format_exception(error)), nl=False, err=True)
                raise click.exceptions.Exit(failure.exit_code) from error
            if as_json:
                print_json({"error": type(error).__name__, "message": str(error)})
            raise failure from error

    return run


def _nobody_reads() -> bool:
    """True if the reader of our output is gone. A program that we run may lose pipes of its own."""
    if not hasattr(select, "poll"):  # Windows
        return True
    pipe = select.poll()
    pipe.register(1, 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


# -- errors ------------------------------------------------------------------------------------------------------------


class _OurFailure(click.ClickException):
    exit_code = OUR_FAILURE


class _TheirFailure(click.ClickException):
    exit_code = THEIR_FAILURE


def _as_line(error: Exception) -> click.ClickException:
    if isinstance(error, AtlasError):
        return _OurFailure(str(error))
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    text = f"the program failed with {type(error).__name__}: {error}{notes}"
    return _TheirFailure(f"{text}\n--traceback shows where.")


def print_exception(error: BaseException) -> None:
    """As Python prints it, without the frames of the recording."""
    shown: list[TracebackException | None] = [TracebackException.from_exception(error)]
    whole = shown[0]
    while shown:
        part = shown.pop()
        if part is not None:
            part.stack = StackSummary.from_list(
                [frame for frame in part.stack if not frame.filename.startswith(_NOT_THE_SCRIPTS)]
            )
            shown += [part.__cause__, part.__context__, *(part.exceptions or ())]
    assert whole is not None
    for line in whole.format():
        echo(line, nl=False, err=True)


# -- printing ----------------------------------------------------------------------------------------------------------


def echo(text: str, *, nl: bool = True, err: bool = False) -> None:
    """Print text. Every verb prints through this or through a rich console with text that render/ made."""
    click.echo(clean_text(text), nl=nl, err=err)


def print_styled(shown: Any) -> None:
    """Print what has a text of its own and one for rich: that on a terminal, with colours, the other elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(shown)
    else:
        echo(str(shown))


def print_json(content: dict[str, Any]) -> None:
    """One JSON object on stdout. In ASCII: outside of it JSON escapes neither C1 controls nor direction marks."""
    echo(json.dumps(content, allow_nan=False))


def print_result(content: dict[str, Any], text: object, as_json: bool) -> None:
    """The result of a verb: `content` with --json, else `text`."""
    if as_json:
        print_json(content)
    else:
        echo(str(text))


def show(graph: Graph, *, as_json: bool, depth: int | None = None, top: int = 10, **more: Any) -> None:
    """The summary: as JSON with `more` beside it, or as text of the terminal's width."""
    if as_json:
        print_json({**more, "summary": summarize(graph)})
        return
    from rich.console import Console

    from torchatlas.render.text import print_summary, summary_text

    console = Console(highlight=False)
    if console.is_terminal:
        print_summary(graph, console, depth=depth, top=top)
    else:
        echo(summary_text(graph, depth=depth, top=top), nl=False)


# -- files and processes -----------------------------------------------------------------------------------------------


def own_path(path: Path | None) -> Path | None:
    """Each process that torchrun started writes a file of its own: run.atlas becomes run-rank0.atlas."""
    rank = process_rank()
    return path if path is None or rank is None else with_rank(path, rank)


def process_rank() -> int | None:
    """Which of several processes this is, as torchrun says; None when it is the only one."""
    rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and count.isdecimal() and int(count) > 1 else None


def check_output(path: Path | None) -> None:
    """Refuse a file that could not be written before the long work begins, not after it."""
    if path is None:
        return
    if suffix_of(path) not in WRITERS:
        known = ", ".join(WRITERS) or "none"
        raise FileFormatError(f"{path.name}: no format is written under this suffix; known: {known}.")
    check_folder(path)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """A spinner with the time on stderr while something long runs; nothing where stderr is no terminal."""
    with ProgressLine(text, patience_s=0) as shown:
        shown.tick()
        yield


@contextmanager
def stdout_to_stderr(wanted: bool) -> Iterator[None]:
    """With --json a recorded program prints to stderr: its print, its C code and its child processes."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)

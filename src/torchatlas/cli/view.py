"""torchatlas view [FILE|TARGET]...: the viewer in the browser, as one page or, for a folder, from a loopback server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from torchatlas.cli._graph import GraphSource, TargetRun, run_options
from torchatlas.cli._options import complete_files, device_option, echo, output_option, print_result, progress, verb
from torchatlas.cli._page import check_page, write_page
from torchatlas.errors import FileFormatError, FileSystemError, InvalidInputError
from torchatlas.files import open_to_read
from torchatlas.graph.formats import suffix_of
from torchatlas.render.viewer.browser import open_in_browser, redirecting_page
from torchatlas.render.viewer.captures import Captures
from torchatlas.render.viewer.content import Viewed, page_of, viewed
from torchatlas.render.viewer.server import CaptureServer
from torchatlas.runs.journal import is_run
from torchatlas.runs.page import run_page, shown_step
from torchatlas.runs.run import Run

MOST_INLINE_BYTES = 64_000_000  # of a graph's columns: a page of more takes a browser long to read


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE|TARGET|FOLDER]...", shell_complete=complete_files)
@run_options
@output_option("Write the page here (.html) and keep it.")
@click.option(
    "--overlay",
    type=click.Path(path_type=Path),
    help='A .json with numbers to colour by: {"blocks.0": 0.3, "head.linear": 1.5}, or {"title": {...}, ...}.',
)
@device_option
@click.option("--title", default="", help="The heading.  [default: the name of the file or of the model's class]")
@click.option("--step", type=int, metavar="N", help="Of a run: the step whose graph is shown.  [default: the last]")
@click.option("--no-browser", is_flag=True, help="Open no browser; print where the page is.")
@verb
def command(
    files: tuple[str, ...],
    run: TargetRun,
    output: Path | None,
    overlay: Path | None,
    device: str | None,
    title: str,
    step: int | None,
    no_browser: bool,
    as_json: bool,
) -> None:
    """Open graphs in the browser, to be explored.

    One FILE or TARGET (as for `torchatlas capture`) is one page that asks for nothing but itself; two are compared.
    Without any, the viewer is empty, and .atlas and .json files can be dropped onto it.

    The folder of a recorded run is one page: the graph of a step, and a timeline of all steps. Any other
    FOLDER is watched: the captures in it are listed beside the viewer, as they come and change. For that, and for
    graphs too large for one page, a server runs on this machine alone, until Ctrl-C.

    \b
    torchatlas view step.atlas
    torchatlas view before.atlas after.atlas
    torchatlas view models.gpt:build --inputs int64:2,16 --backward -o gpt.html
    torchatlas view runs/
    torchatlas view run.atlas --step 120
    """
    check_page(output)
    extras: dict[str, Any] = {"overlay": None if overlay is None else _numbers(overlay), "device": device}
    runs = [item for item in files if is_run(Path(item))]
    if runs:
        if len(files) > 1 or run.options or any(extras.values()):
            raise click.UsageError(f"{runs[0]} is a run, which is shown by itself, without other options than -o.")
        _view_run(Run.load(runs[0]), output, step, title, no_browser, as_json)
        return
    if step is not None:
        raise click.UsageError("--step is for a recorded run: torchatlas view run.atlas --step 120.")
    folders = [item for item in files if Path(item).is_dir()]
    if folders:
        if len(files) > 1 or output is not None or run.options:
            raise click.UsageError(
                f"{folders[0]} is a folder, which is served by itself, without -o or options of runs."
            )
        _serve(Captures([Path(folders[0])], **extras), title or Path(folders[0]).resolve().name, no_browser, as_json)
        return
    shown = [one for item in files for one in _viewed(item, run, as_json)]
    too_large = sum(one.graph.nbytes for one in shown) > MOST_INLINE_BYTES
    if too_large and output is None and all(Path(item).is_file() for item in files):
        _serve(Captures([Path(item) for item in files], **extras), title or shown[0].name, no_browser, as_json)
        return
    with progress("writing the page"):
        name = title or (shown[0].name if shown else "viewer")
        path = write_page(page_of(shown, title=title, **extras), output, name)
    opened = not no_browser and open_in_browser(path.resolve().as_uri())
    text = f"{'opened' if opened else 'written'}: {path}"
    print_result({"file": str(path), "graphs": len(shown), "opened": opened}, text, as_json)


def _view_run(run: Run, output: Path | None, step: int | None, title: str, no_browser: bool, as_json: bool) -> None:
    with progress("writing the page"):
        number = shown_step(run, step)
        path = write_page(run_page(run, step=number, title=title), output, title or run.path.name)
    opened = not no_browser and open_in_browser(path.resolve().as_uri())
    text = f"{'opened' if opened else 'written'}: {path}"
    print_result({"file": str(path), "steps": len(run), "shown": number, "opened": opened}, text, as_json)


def _viewed(item: str, run: TargetRun, as_json: bool) -> list[Viewed]:
    source = GraphSource(item, run)
    if source.is_target:
        gradients = bool(run.backward or run.optimizer) and not run.fake  # the viewer shows their norms
        return viewed(source.graph("view", as_json, gradients=gradients))
    if suffix_of(Path(item)) == ".html":
        return viewed(Path(item))  # which may hold two
    return viewed(source.graph("view", as_json), name=Path(item).name)


def _numbers(path: Path) -> dict[str, Any]:
    """The overlay of a file. What is wrong with its names and numbers, the document says."""
    try:
        with open_to_read(path) as file:
            overlay = json.loads(file.read())
    except OSError as error:
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not readable as JSON: {error}.") from error
    if not isinstance(overlay, dict):
        raise InvalidInputError(
            f'{path}: an overlay is numbers by name, {{"blocks.0": 0.3}}, not a {type(overlay).__name__}.'
        )
    return overlay


def _serve(captures: Captures, title: str, no_browser: bool, as_json: bool) -> None:
    """Until Ctrl-C, SIGTERM or the page's own button."""
    with CaptureServer(captures, title) as server, _ended_by_signals(), suppress(KeyboardInterrupt):
        opened = not no_browser and open_in_browser(redirecting_page(server.address).as_uri())
        text = f"{'opened' if opened else 'open'}: {server.address}\nCtrl-C ends the server."
        print_result({"url": server.address, "opened": opened}, text, as_json)
        server.wait()
    if not as_json:
        echo("The server has ended.")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the server as Ctrl-C does."""

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""torchatlas record SCRIPT: run a training script and record its steps into a folder."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchatlas.cli import _target
from torchatlas.cli._options import (
    THEIR_FAILURE,
    count_option,
    echo,
    own_path,
    print_exception,
    print_json,
    script_command,
    stdout_to_stderr,
    verb,
)
from torchatlas.interrupts import orderly_death
from torchatlas.runs.run import Run

if TYPE_CHECKING:
    from torchatlas.runs.run_recording import RunRecording


@script_command
@count_option("--every", "Record every Nth step.", 1, least=1)
@count_option("--last", "How many of the last steps to keep in full.", 3)
@click.option(
    "--keep",
    type=click.Choice(["structure", "full"]),
    default="structure",
    show_default=True,
    help="A graph of each structure, or of every recorded step.",
)
@click.option("--gradients", is_flag=True, help="Also the norms of gradients, by module.")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    help="The folder to write.  [default: run.atlas, or run-2.atlas if that is there]",
)
@verb
def command(
    script: str,
    arguments: tuple[str, ...],
    every: int,
    last: int,
    keep: str,
    gradients: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run SCRIPT and record the steps of its training into a folder.

    The script is unchanged and ends as it ends alone, with its own output and exit code. What follows SCRIPT are its
    own arguments. A step ends when an optimizer has stepped. Ctrl-C, an exception and SIGTERM leave a folder that is
    complete; after kill -9 the last few seconds are missing.

    \b
    torchatlas record train.py --epochs 1
    torchatlas record --every 100 --out nightly.atlas train.py
    torchatlas view run.atlas
    """
    import torchatlas as atlas

    target = _target.parse_script(script, "record")
    run = atlas.recording(every=every, last=last, keep=keep, gradients=gradients, path=own_path(out))
    ended: BaseException | None = None
    begun = False
    with stdout_to_stderr(as_json), _target.program(target, arguments), orderly_death():
        try:
            with run:
                begun = True
                _target.run_script(target)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if not begun:  # the folder cannot be written, say
                raise
            ended = error
            if not isinstance(error, SystemExit):
                print_exception(error)
    _tell(run, script, ended, as_json)
    if isinstance(ended, SystemExit):
        raise ended
    if isinstance(ended, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    sys.exit(0 if ended is None else THEIR_FAILURE)


def _tell(run: RunRecording, script: str, ended: BaseException | None, as_json: bool) -> None:
    """What was recorded: on stderr, since stdout is the program's; as JSON on stdout, where the program has none."""
    if as_json:
        failure = None if ended is None else ": ".join(filter(None, (type(ended).__name__, str(ended))))
        content = Run.load(run.path).to_dict() if run.path is not None else {}
        print_json({"target": script, "failure": failure, **content})
        return
    assert run.path is not None
    steps = f"{run.recorded:,} step{'s' * (run.recorded != 1)}"
    path = os.path.relpath(run.path) if run.path.is_relative_to(Path.cwd()) else run.path
    opens = f"torchatlas view {path} opens it" if run.recorded else "there is nothing in it to view"
    echo(f"torchatlas recorded {steps} in {path}; {opens}.", err=True)
    for note in run.notes:
        echo(f"note: {note}", err=True)

"""torchatlas doctor SCRIPT: run a script and say what is wrong with the training in it."""

from __future__ import annotations

import re
import sys
from traceback import format_exception
from typing import NoReturn

import click

from torchatlas.cli import _target
from torchatlas.cli._options import (
    OUR_FAILURE,
    THEIR_FAILURE,
    echo,
    print_exception,
    print_json,
    script_command,
    stdout_to_stderr,
    verb,
)

EXIT_CODES = {"error": 3, "warning": 4}  # by the worst finding; notes alone are no reason to fail
_READS_ARGUMENTS = re.compile(
    r"argv|argparse|click|typer|fire|docopt|absl|hydra|HfArgumentParser|parse_args|simple_parsing"
)
_ARGUMENT_ERROR = 2  # how argparse and click end a program


def _list(context: click.Context) -> None:
    from torchatlas.diagnosis.events import DIAGNOSES

    echo("\n".join(DIAGNOSES))
    context.exit()


@script_command
@click.option("--only", multiple=True, metavar="KEY", help="Look for this fault only. Repeatable.")
@click.option("--ignore", multiple=True, metavar="KEY", help="Do not look for this fault. Repeatable.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, wanted: _list(context) if wanted else None,
    help="Print the keys of all faults that are looked for.",
)
@verb
def command(
    script: str, arguments: tuple[str, ...], only: tuple[str, ...], ignore: tuple[str, ...], as_json: bool
) -> None:
    """Run SCRIPT and say what is wrong with its training.

    The script is unchanged. A finding says what is wrong, where, why, and how to fix it. What follows SCRIPT are its
    own arguments. A line that ends with "# atlas: ignore KEY" is not reported.

    Exit code 0: nothing was found, or notes alone; 3: an error was found; 4: a warning and no error; 1: the script
    failed; 2: torchatlas failed, and found nothing before.

    \b
    torchatlas doctor train.py --epochs 1
    torchatlas doctor --only in-place --only no-gradient train.py
    torchatlas doctor --ignore saved-memory train.py
    torchatlas doctor --json train.py
    """
    import torchatlas as atlas

    target = _target.parse_script(script, "doctor")
    ended: BaseException | None = None
    with stdout_to_stderr(as_json), _target.program(target, arguments):
        visit = atlas.doctor(only=only or None, ignore=ignore)
        try:
            with visit:
                _target.run_script(target)
        except SystemExit as error:
            ended = error if visit.left_to_parent or not visit.complete else None
            if error.code is not None and not isinstance(error.code, int):
                echo(str(error.code), err=True)  # as Python does
        except BaseException as error:  # also an interrupt: what was found until then is told
            ended = error
    if visit.left_to_parent:  # a process that the script has forked ends like any other
        _end_as_alone(ended)
    findings = visit.findings
    failure = None if ended is None else f"{type(ended).__name__}: {ended}"
    if as_json:
        print_json({"target": script, "failure": failure, **findings.to_dict()})
    elif ended is not None and not isinstance(ended, SystemExit):
        print_exception(ended)
    if click.get_current_context().params["traceback"]:
        for own in findings.failures:
            echo("".join(format_exception(own.error)), nl=False, err=True)
    if misplaced := _misplaced(script, arguments, ended):
        echo(f"{misplaced} went to {script}: options of torchatlas come before the script's name.", err=True)
    if not as_json:
        echo(f"\n{findings}")  # on a line of its own, whatever the script printed last
        for key in findings.keys[:1]:
            echo(f"what this means, in a short program: torchatlas learn {key}", err=True)
    if isinstance(ended, KeyboardInterrupt):
        sys.exit(130)
    if ended is not None:
        sys.exit(THEIR_FAILURE)
    sys.exit(EXIT_CODES.get(findings.worst or "", OUR_FAILURE if findings.failures else 0))


def _end_as_alone(ended: BaseException | None) -> NoReturn:
    if isinstance(ended, SystemExit):
        sys.exit(ended.code if isinstance(ended.code, int | None) else THEIR_FAILURE)
    if ended is not None:
        print_exception(ended)
    sys.exit(0 if ended is None else THEIR_FAILURE)


def _misplaced(script: str, arguments: tuple[str, ...], ended: BaseException | None) -> str:
    """An option of ours that was written after the script, which does not seem to know it."""
    ours = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    misplaced = next((argument for argument in arguments if argument.partition("=")[0] in ours), "")
    if not misplaced:
        return ""
    refused = isinstance(ended, SystemExit) and ended.code == _ARGUMENT_ERROR
    with open(script, encoding="utf-8", errors="replace") as file:
        return misplaced if refused or not _READS_ARGUMENTS.search(file.read()) else ""

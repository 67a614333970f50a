"""torchatlas doctor SCRIPT: run a script and say what is wrong with the training in it."""

from __future__ import annotations

import sys

import click

from torchatlas.cli import _target
from torchatlas.cli._options import THEIR_FAILURE, echo, print_exception, print_json, stdout_to_stderr, verb
from torchatlas.errors import InvalidInputError

FOUND = 3


def _list(context: click.Context) -> None:
    from torchatlas.diagnosis.diagnosis import DIAGNOSES

    echo("\n".join(DIAGNOSES))
    context.exit()


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option("--only", multiple=True, metavar="KEY", help="Look for this fault only. Repeatable.")
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, option, wanted: _list(context) if wanted else None,
    help="Print the keys of all faults that are looked for.",
)
@verb
def command(script: str, arguments: tuple[str, ...], only: tuple[str, ...], as_json: bool) -> None:
    """Run SCRIPT unchanged and say what is wrong with its training: what, where, why, and the fix.

    What follows SCRIPT are its own arguments. Exit code 0: nothing was found; 3: something was; 1: the script failed.

    \b
    torchatlas doctor train.py --epochs 1
    torchatlas doctor --only in-place --only no-gradient train.py
    torchatlas doctor --json train.py
    """
    import torchatlas as atlas

    target = _target.parse_target(script)
    if not target.is_script:
        raise InvalidInputError(f"{script} is no script; doctor runs scripts: torchatlas doctor train.py.")
    ended: BaseException | None = None
    with stdout_to_stderr(as_json), _target.program(target, arguments):
        visit = atlas.doctor(only=only or None)
        try:
            with visit:
                _target.run_script(target)
        except SystemExit as error:
            ended = None if visit.complete else error
            if error.code is not None and not isinstance(error.code, int):
                echo(str(error.code), err=True)  # as Python does
        except BaseException as error:  # also an interrupt: what was found until then is told
            ended = error
    failure = None if ended is None else f"{type(ended).__name__}: {ended}"
    if as_json:
        print_json({"target": script, "failure": failure, **visit.findings.to_dict()})
    elif ended is not None and not isinstance(ended, SystemExit):
        print_exception(ended)
    if not as_json:
        echo(str(visit))
    if isinstance(ended, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(THEIR_FAILURE if ended is not None else FOUND if visit.findings else 0)

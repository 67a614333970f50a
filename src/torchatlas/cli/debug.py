"""torchatlas debug SCRIPT: run a script, and stop inside of its backward passes."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import echo, script_command, verb
from torchatlas.errors import InvalidInputError


@script_command
@click.option(
    "--command", "-c", "commands", multiple=True, metavar="COMMAND", help="Typed for you at first. Repeatable."
)
@click.option("--break", "-b", "breakpoints", multiple=True, metavar="WHERE", help="NAME, nan, zero or above X.")
@verb
def command(
    script: str, arguments: tuple[str, ...], commands: tuple[str, ...], breakpoints: tuple[str, ...], as_json: bool
) -> None:
    """Run SCRIPT and step through its backward passes.

    The script is unchanged. `help` lists what can be typed. Without --break it stops before the first node of the first
    backward pass. Ctrl-C stops before the next node; at the prompt it ends the program.

    \b
    torchatlas debug train.py --epochs 1
    torchatlas debug --break nan train.py
    torchatlas debug -c "until 0.weight" -c grads -c run train.py
    """
    target = _target.parse_script(script, "debug")
    if as_json:
        raise InvalidInputError("debug is a conversation, and has no --json. torchatlas doctor has one.")
    from torchatlas.autograd.check_arguments import counted
    from torchatlas.autograd.debug_console import Console, Stopped, condition_of
    from torchatlas.autograd.engine_observer import watched

    with _target.program(target, arguments), _recordings() as forward:
        console = Console(forward=forward, commands=commands, stdin=None if sys.stdin.isatty() else sys.stdin)
        if breakpoints:
            console.session.go()
        for text in breakpoints:
            console.session.breakpoints.append(console.session.condition(**condition_of(text)))
        try:
            with _interrupts(console.interrupt), watched(console.session):
                _target.run_script(target)
        except (Stopped, KeyboardInterrupt):
            echo("stopped; the program did not end by itself", err=True)
            raise click.exceptions.Exit(1) from None
    echo(f"the program ended; {counted(console.session.executed, 'node')} ran in its backward passes")
    for text in console.session.never_came():
        echo(f"this breakpoint never came: {text}")


@contextmanager
def _interrupts(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Give Ctrl-C to a handler. Not where it is ignored, as in the background: that would stop such a program."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) == handler:  # the program may have set its own
            signal.signal(signal.SIGINT, before)


@contextmanager
def _recordings() -> Iterator[Any]:
    """A function that gives what was recorded since its last call, one forward pass, and the names of parameters."""
    import torchatlas as atlas

    running = [atlas.recording(track_timing=False).start()]

    def since_last() -> Any:
        done = running.pop()
        done.stop()
        names = done.parameter_names()
        running.append(atlas.recording(track_timing=False).start())
        return done.graph, names

    try:
        yield since_last
    finally:
        running.pop().stop()

"""torchatlas selftest: what works with this torch and this Python."""

from __future__ import annotations

import click

from torchatlas.cli._options import print_result, progress, verb

FAILED = 1


@click.command()
@verb
def command(as_json: bool) -> None:
    """Say what works on this installation. Takes less than 30 seconds. Exit code 0: all; 1: something fails.

    Tries every private symbol of torch that torchatlas uses, replays a training step, walks an autograd graph, runs a
    traced model, asks the doctor and draws a picture. Run it after installing a torch that
    docs/versions.md does not list.
    """
    with progress("trying what works here"):
        from torchatlas.selftest import selftest

        report = selftest()
    print_result(report.to_dict(), report, as_json)
    if not report:
        raise click.exceptions.Exit(FAILED)

"""torchatlas native: build the recorder in C++ for this torch and this Python."""

from __future__ import annotations

import click

from torchatlas.cli._options import echo, print_result, progress, verb


@click.command()
@click.option("--status", "only_status", is_flag=True, help="Say whether it is built, and build nothing.")
@click.option("--again", is_flag=True, help="Build it even if it is there already.")
@click.option("--remove", is_flag=True, help="Delete all builds.")
@verb
def command(only_status: bool, again: bool, remove: bool, as_json: bool) -> None:
    """Build the native recorder, which makes recording cheap.

    It is compiled with your C++ compiler for the installed torch and kept in your cache: half a minute, once per
    version of torch. Recordings then use it by themselves. Everything works without it, only slower.
    """
    if sum((only_status, again, remove)) > 1:
        raise click.UsageError("--status, --again and --remove exclude each other.")
    with progress("loading torch"):
        from torchatlas.capturing.native import build
    if remove:
        removed = [str(path) for path in build.remove()]
        print_result({"removed": removed}, "\n".join(["removed:", *removed]) if removed else "There is none.", as_json)
        return
    if not only_status:
        with progress("compiling the native recorder"):
            build.build(again=again)
    status = build.status()
    print_result(status.to_dict(), status, as_json)
    if not status.usable and not as_json:
        echo("Recording works without it, only slower.")

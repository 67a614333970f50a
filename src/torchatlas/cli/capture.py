"""torchatlas capture TARGET: run a model, a function or a script and show, or save, the graph of what it did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._graph import TargetRun, run_options, save_partial
from torchatlas.cli._options import (
    THEIR_FAILURE,
    check_output,
    echo,
    output_option,
    own_path,
    print_exception,
    process_rank,
    progress,
    show,
    stdout_to_stderr,
    target_argument,
    verb,
)
from torchatlas.graph import Graph
from torchatlas.graph.formats import suffix_of


class _OptionsThenTarget(click.Command):
    """What follows a script is the script's own; after module:callable our options may still come."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        target = values.get("target")
        ctx.allow_interspersed_args = not (isinstance(target, str) and target.endswith(".py"))
        return super().parse_args(ctx, args)


@click.command(cls=_OptionsThenTarget, options_metavar="[OPTIONS]")
@target_argument
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@run_options
@click.option(
    "--values",
    type=click.Choice(["stats", "all", "replay"]),
    help="Also keep a few numbers of every result, every result, or what torchatlas verify needs.",
)
@output_option("Save the graph (.atlas, .json ...).")
@verb
def command(
    target: str,
    arguments: tuple[str, ...],
    run: TargetRun,
    values: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run TARGET and print the graph of what it did.

    TARGET is module:callable or path.py:callable. The callable is a model, a model class, a function of the --inputs,
    or a function without arguments that returns a model, (model, args) or (model, args, kwargs), or runs code of its
    own. Or TARGET is a script: our options come before it, and all that follows are its own arguments.

    \b
    torchatlas capture models.gpt:build --inputs int64:2,16 --backward --output gpt.atlas
    torchatlas capture models.gpt:build --inputs int64:2,16 --warmup 2 --repeat 10
    torchatlas capture --output run.atlas train.py --epochs 1
    torchrun --nproc-per-node 2 -m torchatlas capture --output run.atlas train.py
    """
    output = own_path(output)
    parsed = _target.parse_target(target)
    check_output(output)
    _check_values(values, output)
    if parsed.is_script:
        if run.options:
            raise click.UsageError(
                f"{run.options[0]} is for models; a script runs as it is. Its own options come after it."
            )
        _run_script(parsed, arguments, output, values, as_json)
        return
    if arguments:
        raise click.UsageError(f"{parsed} takes no arguments: {' '.join(arguments)}. Only scripts do.")
    with stdout_to_stderr(as_json), _target.program(parsed), _target.imported(parsed) as item:
        graph = run.graph(item, parsed, values=values, output=output)
    _finish(graph, output, as_json, str(parsed))


def _check_values(values: str | None, output: Path | None) -> None:
    """Refuse to keep values for a file that does not hold them. A page shows their statistics, and replays nothing."""
    suffixes = (".atlas",) if values == "replay" else (".atlas", ".html", ".htm")
    if values is not None and output is not None and suffix_of(output) not in suffixes:
        raise click.UsageError(
            f"--values {values} would change nothing: {output.name} holds no values, an .atlas file does."
        )


def _run_script(
    target: _target.Target, arguments: tuple[str, ...], output: Path | None, values: str | None, as_json: bool
) -> None:
    """Run it under recording. How it ends, by exit code or exception, is how we end."""
    import torchatlas as atlas

    ended: BaseException | None = None
    with stdout_to_stderr(as_json), _target.program(target, arguments):
        try:
            with atlas.recording(values=values) as rec:
                _target.run_script(target)
        except BaseException as error:  # KeyboardInterrupt and SystemExit included: what was recorded is kept
            ended = error
    with progress("decoding"):
        graph = rec.graph
    if ended is None:
        _finish(graph, output, as_json, str(target))
        return
    if isinstance(ended, SystemExit):
        _finish(graph, output, as_json, str(target))
        raise ended
    print_exception(ended)
    if as_json:
        _finish(graph, output, as_json, str(target), failure=f"{type(ended).__name__}: {ended}")
    else:
        save_partial(graph, output, str(target))
    sys.exit(130 if isinstance(ended, KeyboardInterrupt) else THEIR_FAILURE)


def _finish(graph: Graph, output: Path | None, as_json: bool, target: str, **more: Any) -> None:
    if output is not None:
        with progress(f"writing {output.name}"):
            graph.save(output)
    if as_json or not process_rank():  # the other processes of one run did much the same: one summary will do
        show(graph, as_json=as_json, target=target, output=None if output is None else str(output), **more)
    if output is not None and not as_json:
        echo(f"\nwritten: {output}")

"""torchatlas capture TARGET: run a model, a function or a script and show, or save, the graph of what it did."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import click

from torchatlas.cli import _target
from torchatlas.cli._options import (
    THEIR_FAILURE,
    check_output,
    echo,
    own_path,
    print_exception,
    process_rank,
    progress,
    runs,
    show,
    stdout_to_stderr,
    verb,
)
from torchatlas.errors import AtlasError, InvalidInputError
from torchatlas.graph import Graph


class _OptionsThenTarget(click.Command):
    """What follows a script is the script's own; after module:callable our options may still come."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        values, _, _ = self.make_parser(ctx).parse_args(list(args))
        target = values.get("target")
        ctx.allow_interspersed_args = not (isinstance(target, str) and target.endswith(".py"))
        return super().parse_args(ctx, args)


@click.command(cls=_OptionsThenTarget, options_metavar="[OPTIONS]")
@click.argument("target")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
@click.option("--inputs", multiple=True, metavar="SHAPE", help="An example input: [NAME=][DTYPE:]SHAPE. Repeatable.")
@click.option("--backward", is_flag=True, help="Also run backward, from the sum of the floating outputs.")
@click.option("--optimizer", metavar="NAME", help="Also take a step of this optimizer of torch.optim.")
@click.option("--fake", is_flag=True, help="Compute and allocate nothing: shapes only.")
@runs()
@click.option(
    "--values",
    type=click.Choice(["stats", "all", "replay"]),
    help="Keep what every op made, a few numbers of it, or what torchatlas verify needs.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Save the graph (.atlas, .json ...).")
@verb
def command(
    target: str,
    arguments: tuple[str, ...],
    inputs: tuple[str, ...],
    backward: bool,
    optimizer: str | None,
    fake: bool,
    warmup: int,
    repeat: int,
    values: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run TARGET and print the graph of what it did.

    TARGET is module:callable or path.py:callable, where the callable is a model, a model class, a function of the
    --inputs, or a function without arguments that returns a model, (model, args) or (model, args, kwargs), or runs
    code of its own. Or it is a script: options come before it, all that follows are its own arguments.

    \b
    torchatlas capture models.gpt:build --inputs int64:2,16 --backward --output gpt.atlas
    torchatlas capture models.gpt:build --inputs int64:2,16 --warmup 2 --repeat 10
    torchatlas capture --output run.atlas train.py --epochs 1
    torchrun --nproc-per-node 2 -m torchatlas capture --output run.atlas train.py
    """
    output = own_path(output)
    parsed = _target.parse_target(target)
    check_output(output)
    run_options = {"--inputs": inputs, "--backward": backward, "--optimizer": optimizer, "--fake": fake}
    run_options |= {"--warmup": warmup, "--repeat": repeat > 1}
    given = [name for name, value in run_options.items() if value]
    if parsed.is_script:
        if given:
            raise click.UsageError(f"{given[0]} is for models; a script runs as it is. Its own options come after it.")
        _run_script(parsed, arguments, output, values, as_json)
        return
    if arguments:
        raise click.UsageError(f"{parsed} takes no arguments: {' '.join(arguments)}. Only scripts do.")
    options = {"backward": backward, "optimizer": _target.optimizer_named(optimizer), "fake": fake, "values": values}
    options |= {"warmup": warmup, "repeat": repeat}
    with stdout_to_stderr(as_json), _target.program(parsed), _target.found(parsed) as item:
        graph = graph_of(item, parsed, inputs, options, given, output)
    _finish(graph, output, as_json, str(parsed))


def graph_of(
    item: Any,
    target: _target.Target,
    inputs: tuple[str, ...],
    options: dict[str, Any],
    given: list[str],
    output: Path | None,
) -> Graph:
    """Capture a model with its inputs; a function without arguments is run to see what it is."""
    from torch import nn

    import torchatlas as atlas

    args, kwargs = _target.example_inputs(inputs, fake=options["fake"])
    builds = isinstance(item, type) and issubclass(item, nn.Module)
    if isinstance(item, nn.Module) or inputs or builds:
        if not isinstance(item, nn.Module) and (builds or _target.takes_nothing(item)) and not options["fake"]:
            item = _built(item, target)
        with progress(f"capturing {target}{_runs_text(options)}"):
            return atlas.capture(item, *args, kwargs=kwargs, **options)
    if not _target.takes_nothing(item):
        raise InvalidInputError(f"{target} takes {inspect.signature(item)}; give example inputs with --inputs.")
    try:
        with atlas.recording(
            values=options.get("values")
        ) as rec:  # it may be the program itself: it cannot be run twice to find out
            result = item()
    except Exception as error:
        if rec.failure is not None:
            error.add_note(f"torchatlas was recording; it happened at {rec.failure}")
        _keep_partial(rec.graph, output, str(target))
        raise
    if isinstance(result, nn.Module):
        _check_without_inputs(result, target)
        result = (result, ())
    if isinstance(result, tuple) and 2 <= len(result) <= 3 and isinstance(result[0], nn.Module):
        model, positional, named = (*result, {})[:3]
        positional = positional if isinstance(positional, (tuple, list)) else (positional,)
        with progress(f"capturing {target}{_runs_text(options)}"):
            return atlas.capture(model, *positional, kwargs=dict(named), **options)
    if given:
        raise InvalidInputError(
            f"{given[0]} is for models, and {target} returned {type(result).__name__}, not a model: it is a program "
            "of its own. Leave the option out to record what it runs."
        )
    with progress("decoding"):
        graph: Graph = rec.graph
    return graph


def _runs_text(options: dict[str, Any]) -> str:
    count = options["warmup"] + options["repeat"]
    return f", {count:,} runs" if count > 1 else ""


def _check_without_inputs(model: Any, target: _target.Target) -> None:
    """Raise if a model that came without inputs takes some."""
    if not _target.takes_nothing(model.forward):
        raise InvalidInputError(
            f"{target} returned a {type(model).__name__} without inputs, and it takes some: give them with --inputs."
        )


def _built(item: Any, target: _target.Target) -> Any:
    from torch import nn

    model = item()
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"{target} takes no arguments and returned {type(model).__name__}, not a model, so that --inputs have "
            "nowhere to go. Return a model, or leave out --inputs."
        )
    return model


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
        graph: Graph = rec.graph
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
        _keep_partial(graph, output, str(target))
    sys.exit(130 if isinstance(ended, KeyboardInterrupt) else THEIR_FAILURE)


def _keep_partial(graph: Graph, output: Path | None, target: str) -> None:
    what = f"{target} failed; {len(graph):,} nodes were recorded before"
    try:
        saved = None if output is None else graph.save(output)
    except AtlasError as error:
        echo(f"{what}, but could not be saved: {error}", err=True)
    else:
        echo(f"{what}{'' if saved is None else f' and are in {saved}'}.", err=True)


def _finish(graph: Graph, output: Path | None, as_json: bool, target: str, **more: Any) -> None:
    if output is not None:
        with progress(f"writing {output.name}"):
            graph.save(output)
    if as_json or not process_rank():  # the other processes of one run did much the same: one summary will do
        show(graph, as_json=as_json, target=target, output=None if output is None else str(output), **more)
    if output is not None and not as_json:
        echo(f"\nwritten: {output}")

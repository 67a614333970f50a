"""torchatlas table FILE|TARGET: the modules of a saved graph, or of a model run now, with their figures; or as bars."""

from __future__ import annotations

from pathlib import Path

import click

from torchatlas.cli import _target
from torchatlas.cli._options import print_json, progress, stdout_to_stderr, verb
from torchatlas.errors import InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import READERS
from torchatlas.render.bars import ModuleBars
from torchatlas.render.table import ModuleTable, module_bars, module_table


@click.command()
@click.argument("file", metavar="FILE|TARGET")
@click.option("--bars", type=click.Choice(["time", "macs", "memory", "parameters"]), help="The tree with bars instead.")
@click.option("--depth", type=click.IntRange(min=0), help="Levels of modules to show; as many as fit by default.")
@click.option("--unfold", is_flag=True, help="A row for every module, also for those that are alike.")
@click.option("--inputs", multiple=True, metavar="SHAPE", help="Of a TARGET: [NAME=][DTYPE:]SHAPE. Repeatable.")
@click.option("--backward", is_flag=True, help="Of a TARGET: also run backward.")
@click.option("--optimizer", metavar="NAME", help="Of a TARGET: also take a step of this optimizer of torch.optim.")
@click.option("--fake", is_flag=True, help="Of a TARGET: compute and allocate nothing: shapes only.")
@verb
def command(
    file: str,
    bars: str | None,
    depth: int | None,
    unfold: bool,
    inputs: tuple[str, ...],
    backward: bool,
    optimizer: str | None,
    fake: bool,
    as_json: bool,
) -> None:
    """Print the modules with output shape, parameters, multiply-adds, time and memory, as torchinfo does.

    FILE is a saved graph; TARGET a model or function, as for `torchatlas capture`.

    \b
    torchatlas table step.atlas --depth 3
    torchatlas table step.atlas --bars time
    torchatlas table models.gpt:build --inputs int64:2,16 --backward
    """
    given = {"--inputs": inputs, "--backward": backward, "--optimizer": optimizer, "--fake": fake}
    asked = [name for name, value in given.items() if value]
    if file.endswith(".py") or (":" in file and Path(file).suffix not in READERS):
        graph = _run(file, inputs, backward, optimizer, fake, asked, as_json)
    elif asked:
        raise click.UsageError(f"{asked[0]} is for models that are run now, and {file} is a file: it was run already.")
    else:
        with progress(f"reading {file}"):
            graph = Graph.load(file)
    shown = (
        module_table(graph, depth, fold=not unfold)
        if bars is None
        else module_bars(graph, bars, depth, fold=not unfold)
    )
    if as_json:
        print_json({"file": file, "table" if bars is None else "bars": shown.as_dict()})
    else:
        _show(shown)


def _run(
    text: str,
    inputs: tuple[str, ...],
    backward: bool,
    optimizer: str | None,
    fake: bool,
    asked: list[str],
    as_json: bool,
) -> Graph:
    from torchatlas.cli.capture import _graph_of

    target = _target.parse_target(text)
    if target.is_script:
        raise InvalidInputError(
            f"{text} is a script. Record it first: torchatlas capture --output run.atlas {text}; "
            "then: torchatlas table run.atlas"
        )
    options = {"backward": backward, "optimizer": _target.optimizer_named(optimizer), "fake": fake}
    with stdout_to_stderr(as_json), _target.program(target), _target.found(target) as item:
        return _graph_of(item, target, inputs, options, asked, None)


def _show(shown: ModuleTable | ModuleBars) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(shown)
    else:
        click.echo(str(shown))

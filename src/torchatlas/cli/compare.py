"""torchatlas compare BEFORE AFTER: what is different between two graphs; of files without torch."""

from __future__ import annotations

import sys
from typing import Any

import click

from torchatlas.analysis.diff import compare, comparison_text
from torchatlas.analysis.fail_on import parse_condition
from torchatlas.cli._graph import GraphSource, TargetRun, run_options
from torchatlas.cli._options import complete_files, count_option, echo, old_option, print_result, progress, verb
from torchatlas.errors import InvalidInputError

VIOLATED = 3


@click.command()
@click.argument("before", metavar="BEFORE", shell_complete=complete_files)
@click.argument("after", metavar="AFTER", shell_complete=complete_files)
@run_options
@count_option("--top", "Operations of a kind to list.", 20)
@old_option("--most", "--top", type=click.IntRange(min=0))
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CONDITION",
    help='End with exit code 3 if this holds: "flops>+1%", "peak_bytes>16GB", "structure". Repeatable.',
)
@click.option("--markdown", is_flag=True, help="Print a summary for a pull request, in Markdown.")
@verb
def command(
    before: str, after: str, run: TargetRun, top: int, fail_on: tuple[str, ...], markdown: bool, as_json: bool
) -> None:
    """Print what is different between two graphs.

    BEFORE and AFTER are saved graphs, or models or functions as for `torchatlas capture`. Lists the operations that
    were added, removed and changed, and what that does to every module.

    A CONDITION is "structure" (any operation differs), or a figure (flops, macs, parameters, ops, peak_bytes, time),
    an operator (>, >=, <, <=, !=) and an amount: with a sign the change from BEFORE (+1%, +16MiB), without one the
    figure of AFTER (4.2e9, 80GB, 20ms). Times are of the program alone, as `capture --repeat 10` measures them, and
    have to differ beyond their spread.

    Exit code 0: no CONDITION holds; 3: one holds; 2: one cannot be read or judged, or torchatlas failed; 1: a model or
    function that was run failed.

    \b
    torchatlas compare before.atlas after.atlas
    torchatlas compare before.atlas models.gpt:build --inputs int64:2,16
    torchatlas compare before.atlas after.atlas --fail-on "flops>+1%" --fail-on "peak_bytes>+5%" --markdown
    """
    if markdown and as_json:
        raise InvalidInputError("--markdown and --json contradict each other: choose one.")
    for condition in fail_on:  # a wrong one is refused before anything runs
        parse_condition(condition)
    sources = [GraphSource(before, run), GraphSource(after, run)]
    if any(source.is_target for source in sources):  # the options are for that one, and not for a file beside it
        sources = [source if source.is_target else GraphSource(source.text, TargetRun()) for source in sources]
    graphs = [source.graph("compare", as_json) for source in sources]
    with progress(f"comparing {before} and {after}"):
        comparison = compare(*graphs)
    violations = comparison.violations(fail_on)
    content: dict[str, Any] = {"before": before, "after": after, "comparison": comparison.to_dict()}
    if fail_on:
        content["violations"] = [one.to_dict() for one in violations]
    if markdown:
        echo(comparison.to_markdown(title=f"{before} → {after}", conditions=fail_on, rows=top), nl=False)
    else:
        print_result(content, comparison_text(comparison, most=top), as_json)
    for violation in violations:
        echo(f"--fail-on {violation}", err=True)
    if violations:
        sys.exit(VIOLATED)

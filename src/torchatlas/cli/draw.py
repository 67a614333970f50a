"""torchatlas draw FILE|TARGET: a picture of a graph that fits a page, or a plot of memory, speed, time or gradients.

Options that would change nothing, and files that cannot be written, are refused before a model runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import torchatlas as atlas
from torchatlas.analysis.devices import device_named
from torchatlas.cli._graph import GraphSource, graph_argument
from torchatlas.cli._options import own_path, print_result, progress, verb
from torchatlas.errors import FileFormatError, InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import check_folder, suffix_of
from torchatlas.graph.nouns import Phase
from torchatlas.render.axes import check_size
from torchatlas.render.drawing import SUFFIXES as DRAWINGS
from torchatlas.render.drawing import Drawing, whole

COLOURS = ("type", "time", "memory", "flops", "intensity", "gradient")
PLOTS = ("memory", "roofline", "time", "gradients")
TEXTS = (".dot", ".gv", ".mmd")
_OF_PICTURES = ("font_size", "title", "color_by", "critical_path", "modules", "phases")  # and of no plot
_OF_DRAWINGS = ("size", "dpi", "theme", *_OF_PICTURES)  # and of no text for other programs


@click.command()
@graph_argument
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="An .svg, .png, .pdf, .dot or .mmd.  [default: graph.png]"
)
@click.option("--size", default="", metavar="WxH", help="Pixels.  [default: 1600x1200, of a plot 1200x700]")
@click.option(
    "--font-size", type=click.FloatRange(1, 200), default=9.0, show_default=True, help="The smallest text, in pixels."
)
@click.option(
    "--dpi", type=click.IntRange(1, 100_000), default=96, show_default=True, help="Written into a .png, for printers."
)
@click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the page."
)
@click.option("--title", default="", help="The heading.  [default: the model's class]")
@click.option(
    "--color-by", type=click.Choice(COLOURS), default="type", show_default=True, help="What the colour of a box shows."
)
@click.option("--critical-path", is_flag=True, help="Mark the heaviest chain of ops.")
@click.option("--modules", is_flag=True, help="Draw modules only, without the ops between them.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    type=click.Choice([phase.value for phase in Phase]),
    help="Draw this phase only. Repeatable.",
)
@click.option("--plot", type=click.Choice(PLOTS), help="Draw a plot instead of the graph.")
@click.option("--device", help="The device profile of the roofline.")
@verb
def command(
    source: GraphSource,
    output: Path | None,
    size: str,
    font_size: float,
    dpi: int,
    theme: str,
    title: str,
    color_by: str,
    critical_path: bool,
    modules: bool,
    phases: tuple[str, ...],
    plot: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Draw a graph on a page, or plot its figures.

    Modules that do not fit on the page are drawn closed, as one box. FILE is a saved graph; TARGET a model or function,
    as for `torchatlas capture`. A plot (--plot) shows memory over time, ops under the roofline of a device, time by
    type of op, or gradient norms by depth. Where gradients are asked for, a TARGET is run with backward.

    \b
    torchatlas draw step.atlas -o step.png
    torchatlas draw models.gpt:build --inputs int64:2,16 --backward -o gpt.svg --color-by flops
    torchatlas draw models.gpt:build --inputs int64:2,16 --color-by gradient
    torchatlas draw step.atlas --plot memory -o memory.png
    """
    path = own_path(output) or Path("graph.png")
    _check(path, plot, device)
    page = _size(size, plot)
    graph = source.graph("draw", as_json, gradients="gradient" in (color_by, (plot or "").removesuffix("s")))
    with progress(f"drawing {path.name}"):
        if suffix_of(path) in TEXTS:
            graph.save(path)
            drawing = None
        elif plot is not None:
            drawing = atlas.plot(graph, plot, width=page[0], height=page[1], theme=theme, device=device)
        else:
            drawing = _drawn(
                graph,
                page,
                font_size=font_size,
                theme=theme,
                title=title,
                color_by=color_by,
                critical_path=critical_path,
                view="modules" if modules else "ops",
                phases=phases or None,
            )
        if drawing is not None:
            drawing.save(path, dpi=dpi)
    facts = {"file": str(path)}
    for name in ("width", "height", "boxes", "open_groups", "smallest_text"):
        if hasattr(drawing, name):
            facts[name] = getattr(drawing, name)
    print_result(facts, f"written: {path}", as_json)


def _drawn(graph: Graph, page: tuple[int, int], **options: Any) -> Drawing:
    try:
        return atlas.draw(graph, width=page[0], height=page[1], **options)
    except InvalidInputError as error:  # here it is an option
        raise InvalidInputError(str(error).replace("font_size=", "--font-size ")) from error


def _check(path: Path, plot: str | None, device: str | None) -> None:
    """Refuse options that would change nothing, and files that could not be written."""
    suffix = suffix_of(path)
    if suffix not in DRAWINGS + TEXTS:
        raise FileFormatError(
            f"{path.name}: draw writes .svg, .png or .pdf, and .dot, .gv or .mmd for other programs, not "
            f"{suffix or 'no suffix'!r}."
        )
    if suffix in TEXTS and plot is not None:
        raise FileFormatError(f"{path.name}: a plot is saved as .svg, .png or .pdf, not {suffix!r}.")
    if suffix in TEXTS:
        _refuse(_OF_DRAWINGS, f"is for pictures, and {path.name} is text for other programs, which draw it.")
    if suffix in (".svg", ".pdf"):
        _refuse(("dpi",), f"is written into a .png, and {path.name} is none.")
    if plot is not None:
        _refuse(_OF_PICTURES, f"is for a picture of the graph; the plot of {plot} has no use for it.")
    if plot != "roofline":
        _refuse(("device",), "is for the roofline: add --plot roofline, or leave it out.")
    elif device != "here":  # that is measured, which takes seconds, when it is drawn
        device_named(device)
    check_folder(path)


def _refuse(names: tuple[str, ...], why: str) -> None:
    """Say of the first of these options that was given why it is none here."""
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if parameter.name in names and given:
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def _size(text: str, plot: str | None) -> tuple[int, int]:
    text = text or ("1600x1200" if plot is None else "1200x700")
    found = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", text)
    if found is None:
        raise InvalidInputError(f"--size takes WxH in pixels, as in 1600x1200; got {text!r}.")
    width, height = int(found[1]), int(found[2])
    try:
        if plot is not None:
            check_size(width, height)
        return whole("width", width), whole("height", height)
    except InvalidInputError as error:
        raise InvalidInputError(f"--size {text}: {error}") from error

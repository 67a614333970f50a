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
from torchatlas.cli._options import output_option, own_path, print_result, progress, verb
from torchatlas.errors import FileFormatError, InvalidInputError
from torchatlas.graph import Graph
from torchatlas.graph.formats import check_folder, suffix_of
from torchatlas.graph.nouns import Phase
from torchatlas.render.axes import check_size, paper
from torchatlas.render.drawing import SUFFIXES as DRAWINGS
from torchatlas.render.drawing import Drawing, whole
from torchatlas.render.sheet import WIDTHS, sheet

COLOURS = ("type", "time", "memory", "flops", "intensity", "gradient")
PLOTS = ("memory", "roofline", "time", "gradients")
_NUMBER = r"\d{1,4}(?:\.\d{1,4})?"
DIRECTIONS = ("down", "right")
TEXTS = (".dot", ".gv", ".mmd")
_OF_PICTURES = (  # and of no plot
    *("font_size", "title", "no_title", "no_legend", "no_footer"),
    *("color_by", "critical_path", "modules", "depth", "direction", "phases"),
)
_OF_DRAWINGS = ("size", "dpi", "theme", *_OF_PICTURES)  # and of no text for other programs


@click.command()
@graph_argument
@output_option("An .svg, .png, .pdf, .dot or .mmd.  [default: graph.png]")
@click.option(
    "--size",
    default="",
    metavar="SIZE",
    help="Pixels (1600x1200), or on paper: column (3.4 inches wide), full (7), 5.5in, 5.5x3in.  "
    "[default: 1600x1200, of a plot 1200x700]",
)
@click.option(
    "--font-size",
    type=click.FloatRange(1, 200),
    help="The smallest text, in pixels, on paper in points.  [default: 9, on paper 6]",
)
@click.option(
    "--dpi",
    type=click.IntRange(1, 100_000),
    help="Of a .png: pixels to an inch of paper, or what is written into it.  [default: 300 on paper, else 96]",
)
@click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of the page."
)
@click.option("--title", default="", help="The heading.  [default: the model's class]")
@click.option("--no-title", is_flag=True, help="Leave the heading out.")
@click.option("--no-legend", is_flag=True, help="Leave the legend out.")
@click.option("--no-footer", is_flag=True, help="Leave the line of totals out.")
@click.option(
    "--color-by", type=click.Choice(COLOURS), default="type", show_default=True, help="What the colour of a box shows."
)
@click.option("--critical-path", is_flag=True, help="Mark the heaviest chain of ops.")
@click.option("--modules", is_flag=True, help="Draw modules only, without the ops between them.")
@click.option("--depth", type=click.IntRange(min=1), metavar="N", help="Show so many levels of modules at most.")
@click.option("--direction", type=click.Choice(DIRECTIONS), default="down", show_default=True, help="Where lines lead.")
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
    font_size: float | None,
    dpi: int | None,
    theme: str,
    title: str,
    no_title: bool,
    no_legend: bool,
    no_footer: bool,
    color_by: str,
    critical_path: bool,
    modules: bool,
    depth: int | None,
    direction: str,
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
    torchatlas draw step.atlas --size column --depth 2 --no-footer -o figure.pdf
    torchatlas draw step.atlas --plot memory -o memory.png
    """
    path = own_path(output) or Path("graph.png")
    _check(path, plot, device)
    page = _size(size, plot)
    if no_title:
        _refuse(("title",), "and --no-title contradict each other.")
    graph = source.graph("draw", as_json, gradients="gradient" in (color_by, (plot or "").removesuffix("s")))
    with progress(f"drawing {path.name}"):
        if suffix_of(path) in TEXTS:
            graph.save(path)
            drawing = None
        elif plot is not None:
            drawing = atlas.plot(graph, plot, **page, theme=theme, device=device)
        else:
            drawing = _drawn(
                graph,
                **page,
                font_size=font_size,
                theme=theme,
                title=None if no_title else title,
                legend=not no_legend,
                footer=not no_footer,
                color_by=color_by,
                critical_path=critical_path,
                view="modules" if modules else "ops",
                depth=depth,
                direction=direction,
                phases=phases or None,
            )
        if drawing is not None:
            drawing.save(path, dpi=dpi)
    facts: dict[str, Any] = {"file": str(path)}
    for name in ("width", "height", "inches", "boxes", "open_groups", "smallest_text"):
        if getattr(drawing, name, None) is not None:
            facts[name] = getattr(drawing, name)
    print_result(facts, f"written: {path}", as_json)


def _drawn(graph: Graph, **options: Any) -> Drawing:
    try:
        return atlas.draw(graph, **options)
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
        is_given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if parameter.name in names and is_given:
            raise click.UsageError(f"{parameter.opts[0]} {why}")


def _size(text: str, plot: str | None) -> dict[str, Any]:
    """The options of `draw` and `plot` that say the same as --size."""
    text = text or ("1600x1200" if plot is None else "1200x700")
    pixels = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", text)
    inches = re.fullmatch(rf"({_NUMBER})(?:[x×]({_NUMBER}))?in", text)
    if pixels is None and inches is None and text not in WIDTHS:
        raise InvalidInputError(
            f"--size takes WxH in pixels, as in 1600x1200, or on paper column, full, 5.5in or 5.5x3in; got {text!r}."
        )
    try:
        if pixels is not None:
            width, height = whole("width", int(pixels[1])), whole("height", int(pixels[2]))
            if plot is not None:
                check_size(width, height)
            return {"width": width, "height": height}
        size: Any = text if inches is None else tuple(float(side) for side in inches.groups() if side)
        size = size[0] if isinstance(size, tuple) and len(size) == 1 else size
        sheet(size=size) if plot is None else paper(size)
    except InvalidInputError as error:
        raise InvalidInputError(f"--size {text}: {error}") from error
    return {"size": size}

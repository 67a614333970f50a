"""torchatlas draw FILE|TARGET: a picture of a graph that fits a page, or a plot of memory, speed, time or gradients."""

from __future__ import annotations

import re
from pathlib import Path

import click

from torchatlas.cli._graph import Given, given
from torchatlas.cli._options import own_path, print_json, progress, verb
from torchatlas.errors import InvalidInputError
from torchatlas.graph.nouns import Phase
from torchatlas.render.drawing import Drawing

COLOURS = ("type", "time", "memory", "flops", "intensity", "gradient")
PLOTS = ("memory", "roofline", "time", "gradients")


@click.command()
@given
@click.option("--output", "-o", type=click.Path(path_type=Path), help="An .svg or .png.  [default: graph.png]")
@click.option("--size", default="", metavar="WxH", help="Pixels.  [default: 1600x1200, of a plot 1200x700]")
@click.option("--font-size", type=float, default=9.0, show_default=True, help="No text is smaller, in pixels.")
@click.option("--dpi", type=int, default=96, show_default=True, help="Written into a .png, for printers.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True)
@click.option("--title", default="", help="What stands above.  [default: the model's class]")
@click.option("--color-by", type=click.Choice(COLOURS), default="type", show_default=True)
@click.option("--critical-path", is_flag=True, help="Mark the heaviest chain of ops.")
@click.option("--modules", is_flag=True, help="The architecture: modules, ops between them closed.")
@click.option(
    "--phase", "phases", multiple=True, type=click.Choice([phase.value for phase in Phase]), help="Only these."
)
@click.option("--plot", type=click.Choice(PLOTS), help="A plot instead of the graph.")
@click.option("--device", help="Of the roofline: a device profile.")
@verb
def command(
    given: Given,
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
    """Draw a graph so that it fits the page and can be read; what does not fit is closed into boxes.

    FILE is a saved graph; TARGET a model or function, as for `torchatlas capture`. A plot (--plot) shows memory over
    time, ops under the roofline of a device, time by type of op, or gradient norms by depth.

    \b
    torchatlas draw step.atlas -o step.png
    torchatlas draw models.gpt:build --inputs int64:2,16 --backward -o gpt.svg --color-by flops
    torchatlas draw step.atlas --plot memory -o memory.png
    """
    from torchatlas.render.picture import draw
    from torchatlas.render.plots import plot as draw_plot

    path = own_path(output) or Path("graph.png")
    graph = given.graph("draw", as_json)
    with progress(f"drawing {path.name}"):
        drawing: Drawing
        if plot is not None:
            width, height = _size(size or "1200x700")
            drawing = draw_plot(graph, plot, width=width, height=height, theme=theme, device=device)
        else:
            width, height = _size(size or "1600x1200")
            drawing = draw(
                graph,
                width=width,
                height=height,
                font_size=font_size,
                theme=theme,
                title=title,
                color_by=color_by,
                critical_path=critical_path,
                view="modules" if modules else "ops",
                phases=phases or None,
            )
        drawing.save(path, dpi=dpi)
    facts = {"file": str(path), "width": drawing.width, "height": drawing.height}
    for name in ("boxes", "open_groups", "smallest_text"):
        if hasattr(drawing, name):
            facts[name] = getattr(drawing, name)
    if as_json:
        print_json(facts)
    else:
        click.echo(f"written: {path}")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})[x×](\d{1,6})", text)
    if found is None:
        raise InvalidInputError(f"--size takes WxH in pixels, as in 1600x1200; got {text!r}.")
    return int(found[1]), int(found[2])

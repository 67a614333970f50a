"""Graph -> a page: its boxes and lines fitted to a size, with a title, a legend and totals."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import InvalidInputError
from torchatlas.garbage_collection import collection_paused
from torchatlas.graph import Graph, Phase
from torchatlas.graph.graph_like import GraphLike, as_graph
from torchatlas.registry import check_choice, did_you_mean
from torchatlas.render.drawing import Drawing
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.open_groups import LARGEST, Fit, Opener
from torchatlas.render.layout.outline import MOST_CHILDREN, Outline
from torchatlas.render.layout.scene import Scene, SceneMaker
from torchatlas.render.layout.tree import Tree, build
from torchatlas.render.margins import Look, Margins
from torchatlas.render.scene_painter import ScenePainter
from torchatlas.render.sheet import Size, sheet
from torchatlas.render.theme import theme as theme_named

# When to try again with groups cut into segments, whose contents have no name.
_POOR = 6.0  # boxes of equal importance: a picture that shows less is tried again
_MORE = 1.25  # times: an attempt is better only if it shows so much more than the one before
_FEWEST_CHILDREN = 3  # segments: groups are cut into fewer only if nothing else fits
_LARGEST_TYPE = 12.0  # geometry: pixels, on paper: 9 points, as in a caption
VIEWS = ("ops", "modules")
DIRECTIONS = ("down", "right")


@dataclass(frozen=True)
class Picture(Drawing):
    """A drawn graph, with what it shows."""

    smallest_text: float  # in pixels; on paper 96 to an inch
    boxes: int  # how many are drawn
    open_groups: int  # modules that show what is inside
    scene: Scene = field(repr=False, compare=False)
    outline: Outline = field(repr=False, compare=False)
    fit: Fit = field(repr=False, compare=False)


@explains_arguments
def draw(
    graph: GraphLike,
    *,
    width: int | None = None,
    height: int | None = None,
    size: Size | None = None,
    font_size: float | None = None,
    node_size: float = 0.0,
    theme: str = "light",
    title: str | None = "",
    legend: bool = True,
    footer: bool = True,
    color_by: str = "type",
    critical_path: bool | str = False,
    view: str = "ops",
    depth: int | None = None,
    direction: str = "down",
    phases: Iterable[Phase | str] | None = None,
) -> Picture:
    """Draw a graph so that it fits a page and can be read: what does not fit is closed into boxes, never shrunk.

    Args:
        graph: A graph, or a file, recording or traced model that holds one.
        width: The page's width in pixels; 1600 unless given.
        height: Its height in pixels; 1200 unless given.
        size: The page on paper instead: "column" (3.4 inches wide), "full" (7), another width in inches, each as high
            as what is drawn needs, up to 9; or (width, height) in inches.
        font_size: No text is smaller: 9 pixels unless given, on paper 6 points.
        node_size: No box is lower, in pixels.
        theme: "light" or "dark".
        title: The heading; "" is the model's class, None leaves it out.
        legend: Whether the colours are explained below.
        footer: Whether the last line says what the graph is and what is not shown.
        color_by: "type", or a measure: "time", "memory", "flops", "intensity", "gradient".
        critical_path: Marks the heaviest chain: True by time where it was measured, or "flops", "bytes", "count".
        view: "ops", or "modules", which opens modules only for other modules in them and closes the ops between them
            into one box; an op on its own stays where lines meet it, as the add of a residual does.
        depth: How many levels of modules are shown at most.
        direction: Where lines lead: "down" or "right".
        phases: The phases to draw, such as ("forward",); None draws all.
    Returns:
        A Picture: a notebook shows it, `save(path)` writes .svg, .png or .pdf.
    Raises:
        InvalidInputError: An argument is none of these, or the page is too small to show anything.
        UnknownNameError: There is no such measure to colour by.
        AnalysisError: The graph does not hold what `color_by` or `critical_path` asks for.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.ones(2, 4))
        >>> picture = atlas.draw(graph, width=400, height=500)
        >>> picture.svg[:4], picture.width, picture.smallest_text >= 9
        ('<svg', 400, True)
    """
    graph = as_graph(graph, "draw")
    _check(node_size, view, title, direction)
    page, levels = sheet(width, height, size, font_size), _levels(depth)
    shown = None if phases is None else _phases(graph, phases)
    look = Look(theme_named(theme), title, legend, footer, color_by, critical_path, page, shown)
    with collection_paused():
        tree = build(graph, phases=shown)
        sideways = direction == "right"
        attempt = _fitted(tree, look, float(node_size), view == "modules", depth=levels, sideways=sideways)
        words, fit = attempt.words, attempt.fit
        outline = words.outline
        scene = SceneMaker(outline, words, sideways).scene(fit.box)
        drawn = ScenePainter(look, attempt.margins, outline, words, scene, fit.scale)
        canvas = drawn.drawn()
    opened = sum(frame.open for frame in scene.frames)
    page = drawn.look.sheet
    return Picture(
        canvas.markup(),
        page.width,
        page.height,
        fit.smallest_text,
        len(scene.frames) - opened,
        opened,
        scene,
        outline,
        fit,
        inches=page.inches,
    )


@dataclass(frozen=True)
class _Attempt:
    """An outline whose groups have at most so many children, and which of its groups are open on the page."""

    words: BoxWords
    margins: Margins
    opener: Opener
    fit: Fit

    @property
    def fits(self) -> bool:
        return self.fit.scale >= self.opener.least

    @property
    def told(self) -> float:
        return self.opener.importance.told(self.fit.opened)


def _fitted(tree: Tree, look: Look, node_size: float, modules_only: bool, **limits: Any) -> _Attempt:
    """Choose which groups are open on the page. While the picture shows little, try again with small ops gathered into
    boxes, then with groups that do not fit cut into segments, fewer each time. Returns the attempt that shows most."""
    best: _Attempt | None = None
    page = look.sheet
    limits |= {"largest": _LARGEST_TYPE if page.on_paper else LARGEST, "saves_height": page.fits_content}
    most_children, gathers = MOST_CHILDREN, modules_only
    while most_children >= (_FEWEST_CHILDREN if best else 1):
        outline = Outline(tree, most_children=most_children, modules_only=modules_only, gathers=gathers)
        words, margins = BoxWords(outline), Margins.of(look, outline)
        opener = Opener(outline, words, *margins.room(look), page.font_size, node_size, **limits)
        trial = _Attempt(words, margins, opener, opener.fit())
        if trial.fits and (best is None or trial.told > _MORE * best.told):
            best = trial
        if best is not None and (best.opener.refused is None or best.told >= _POOR):
            break
        refused = opener.importance.count(opener.refused) if opener.refused else most_children
        most_children = min(most_children, refused) * 2 // 3 if gathers else most_children
        gathers = True
    if best is not None:
        return best
    needed = trial.fit.box.width * opener.least, trial.fit.box.height * opener.least
    needed = needed[::-1] if opener.sideways else needed
    raise InvalidInputError(
        f"{page.size(page.width, page.height)} {page.unit} are too few to show anything at "
        f"font_size={page.asked_font_size:g}: use at least {page.size(*_least_page(look, outline, needed))}, "
        "or a smaller font."
    )


def _least_page(look: Look, outline: Outline, needed: tuple[float, float]) -> tuple[int, int]:
    """The smallest page with room for so much: margins grow with the page."""
    width, height = look.sheet.width, look.sheet.height
    for _ in range(60):
        page = replace(look, sheet=replace(look.sheet, width=width, height=height))
        room = Margins.of(page, outline).room(page)
        if room[0] >= needed[0] and room[1] >= needed[1]:
            break
        width += max(0, math.ceil(needed[0] - room[0]))
        height += max(0, math.ceil(needed[1] - room[1]))
    return width, height


def _phases(graph: Graph, names: Iterable[Phase | str]) -> tuple[Phase, ...]:
    known = [phase.value for phase in Phase]
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or "."
            raise InvalidInputError(f"{name!r} is no phase{hint} There are {', '.join(known)}.")
    if not names:
        raise InvalidInputError(f"phases=() leaves nothing to draw; pass some of {', '.join(known)}.")
    ran = [phase for phase in Phase if phase in graph.scopes[""].operations_by_phase]
    if ran and not set(ran) & {Phase(name) for name in names}:  # of a graph with nothing in it the page says so
        asked = " or ".join(Phase(name).value for name in names)
        raise InvalidInputError(
            f"Nothing of this graph ran in {asked}, so there is nothing to draw: "
            f"it has {' and '.join(phase.value for phase in ran)}."
        )
    return tuple(map(Phase, names))


def _levels(depth: Any) -> int | None:
    if depth is None:
        return None
    try:
        levels = 0 if isinstance(depth, bool) else operator.index(depth)
    except TypeError:
        levels = 0
    if levels < 1:
        raise InvalidInputError(f"depth={depth!r} is no number of levels; pass a whole number from 1.")
    return levels


def _check(node_size: Any, view: Any, title: Any, direction: Any) -> None:
    if isinstance(node_size, bool) or not isinstance(node_size, Real) or not 0 <= float(node_size) <= 2000:
        raise InvalidInputError(f"node_size={node_size!r} is no size for boxes; pass pixels, up to 2,000.")
    check_choice("view", view, VIEWS)
    check_choice("direction", direction, DIRECTIONS)
    if title is not None and not isinstance(title, str):
        raise InvalidInputError(f"title={title!r} is no text; pass a string, or None for no heading.")

"""Graph -> a page: its boxes and lines fitted to a size, with a title, a legend and totals."""

from __future__ import annotations

from dataclasses import dataclass

from torchatlas.graph import Graph
from torchatlas.graph.nouns import OperationType
from torchatlas.render.fonts import clipped, text_width
from torchatlas.render.layout.boxes import HEAD, SMALL, STACK, TITLE
from torchatlas.render.layout.fit import Fit, Fitter
from torchatlas.render.layout.labels import Labels
from torchatlas.render.layout.outline import Outline
from torchatlas.render.layout.scene import Frame, Line, Scene, SceneMaker
from torchatlas.render.layout.tree import build
from torchatlas.render.svg import Canvas
from torchatlas.render.theme import Theme, theme
from torchatlas.units import format_count

_SIDE, _TOP, _BOTTOM = 28.0, 64.0, 62.0
_LEGEND = 12.5
_LEGEND_ROW = 22.0


@dataclass(frozen=True)
class Drawing:
    """A picture as SVG text, with what is on it."""

    svg: str
    scene: Scene
    scale: float
    solved: int  # layered problems
    outline: Outline
    crossings: int


def draw(graph: Graph, width: int = 1600, height: int = 1200, font: float = 9.0, name: str = "light", title: str = "") -> Drawing:
    colours = theme(name)
    for most in (120, 60, 30, 14):
        outline = Outline(build(graph), most_children=most)
        labels = Labels(outline)
        bottom = _BOTTOM if width >= 1400 else _BOTTOM + _LEGEND_ROW
        room = (width - 2 * _SIDE, height - _TOP - bottom)
        fitter = Fitter(outline, labels, *room, font)
        fit = fitter.fit()
        if fit.scale >= fitter.least:
            break
    scene = SceneMaker(outline, labels).scene(fit.box)
    canvas = Canvas(width, height, colours)
    page = _Page(canvas, colours, outline, labels, fit, scene)
    page.draw(width, height, room, bottom, title)
    return Drawing(canvas.markup(), scene, fit.scale, fitter.maker.solved, outline, fit.box.crossings)


class _Page:
    def __init__(self, canvas: Canvas, colours: Theme, outline: Outline, labels: Labels, fit: Fit, scene: Scene) -> None:
        self.canvas, self.theme, self.outline, self.labels, self.fit, self.scene = canvas, colours, outline, labels, fit, scene

    def draw(self, width: int, height: int, room: tuple[float, float], bottom: float, title: str) -> None:
        canvas, scene, scale = self.canvas, self.scene, self.fit.scale
        root = self.outline.root
        title = clipped(title or root.type or "computation", 25, width - 2 * _SIDE, True)
        canvas.text(_SIDE, 38, title, size=25, fill=self.theme.ink, bold=True)
        canvas.rect(_SIDE, 50, room[0], 1, fill=self.theme.line)
        canvas.rect(_SIDE, height - bottom + 8, room[0], 1, fill=self.theme.line)
        left = _SIDE + (room[0] - scene.width * scale) / 2
        top = _TOP + (room[1] - scene.height * scale) / 2
        canvas.begin_group(f"translate({left:.2f} {top:.2f}) scale({scale:.4f})")
        for depth in range(-1, max((frame.depth for frame in scene.frames), default=-1) + 1):
            for frame in scene.frames:
                if frame.depth == depth:
                    self._frame(frame)
            self._lines([line for line in scene.lines if line.level == depth])
        for label in scene.labels:
            canvas.text(label.x, label.y, label.text, size=SMALL, fill=self.theme.soft)
        canvas.end_group()
        self._legend(width, height, bottom)

    def _frame(self, frame: Frame) -> None:
        if frame.open:
            self._open(frame)
        else:
            self._closed(frame)

    def _closed(self, frame: Frame) -> None:
        canvas, item = self.canvas, frame.item
        ink, soft = self.theme.ink, self.theme.soft
        marker = self.outline.is_marker(item)
        if marker:
            fill, ink = self.theme.terminal
            stroke, soft = fill, ink
        elif item.is_leaf:
            fill, stroke = self.theme.fills[self.outline.operation_type(item)]
        else:
            fill, stroke = self.theme.background, self.theme.soft
        radius = frame.height / 2 if marker else 5.0
        if item.repeat > 1:
            for behind in (STACK, STACK / 2):
                canvas.rect(frame.x + behind, frame.y + behind, frame.width, frame.height, fill=fill, stroke=stroke, radius=5)
        canvas.rect(frame.x, frame.y, frame.width, frame.height, fill=fill, stroke=stroke, stroke_width=1.0 if item.is_leaf else 1.4, radius=radius)
        middle = frame.x + frame.width / 2
        badge = text_width(f"×{item.repeat:,}", SMALL, True) + 10 if item.repeat > 1 else 0.0
        at = middle - (badge / 2 + 2 if badge else 0) + (0 if item.is_leaf else 6)
        up = (frame.height - (36 if frame.subtitle else 24)) / 2
        canvas.text(at, frame.y + up + (15.5 if frame.subtitle else 16.2), frame.title, size=TITLE, fill=ink, bold=True, anchor="middle")
        if frame.subtitle:
            canvas.text(middle, frame.y + up + 29.5, frame.subtitle, size=SMALL, fill=soft, anchor="middle")
        if not item.is_leaf:
            x, y = at - text_width(frame.title, TITLE, True) / 2 - 12, frame.y + up + 11
            canvas.path(f"M{x - 4:.1f} {y:.1f}h8M{x:.1f} {y - 4:.1f}v8", stroke=self.theme.soft, stroke_width=1.5)
        if badge:
            self._badge(frame.x + frame.width - 6, frame.y + 4, item.repeat)

    def _open(self, frame: Frame) -> None:
        canvas, tints = self.canvas, self.theme.tints
        ground = tints[min(frame.depth, len(tints) - 1)]
        head = tints[min(frame.depth + 2, len(tints) - 1)]
        x, y, width, height = frame.x, frame.y, frame.width, frame.height
        if frame.item.repeat > 1:
            for behind in (STACK, STACK / 2):
                canvas.rect(x + behind, y + behind, width, height, fill=ground, stroke=self.theme.line, radius=7)
        canvas.rect(x, y, width, height, fill=ground, stroke=self.theme.line, radius=7)
        canvas.path(
            f"M{x + 0.5:.1f} {y + HEAD:.1f}v-{HEAD - 7:.1f}a6.5 6.5 0 0 1 6.5 -6.5h{width - 14:.1f}a6.5 6.5 0 0 1 6.5 6.5v{HEAD - 7:.1f}z",
            fill=head,
        )
        canvas.text(x + 10, y + 15.5, frame.title, size=TITLE, fill=self.theme.ink, bold=True)
        canvas.text(x + 17 + text_width(frame.title, TITLE, True), y + 15.5, frame.subtitle, size=SMALL, fill=self.theme.soft)
        if frame.item.repeat > 1:
            self._badge(x + width - 8, y + 3, frame.item.repeat)

    def _badge(self, right: float, y: float, count: int) -> None:
        text = f"×{count:,}"
        wide = text_width(text, SMALL, True) + 10
        fill, ink = self.theme.terminal
        self.canvas.rect(right - wide, y, wide, 16, fill=fill, radius=8)
        self.canvas.text(right - wide / 2, y + 12, text, size=SMALL, fill=ink, bold=True, anchor="middle")

    def _lines(self, lines: list[Line]) -> None:
        for line in lines:
            self.canvas.rounded(line.points, 6, stroke=self.theme.edge, stroke_width=1.3, dash="4 3" if line.returning else "")
        for line in lines:
            if line.arrow:
                (_, before), (x, y) = line.points[-2:] if len(line.points) > 1 else (line.points[0], line.points[0])
                self.canvas.arrow_head(x, y, "up" if y < before else "down", fill=self.theme.edge, size=6.5)

    def _legend(self, width: int, height: int, bottom: float) -> None:
        canvas, scene = self.canvas, self.scene
        y, x = height - 40.0 - (bottom - _BOTTOM), _SIDE
        kinds = {self.outline.operation_type(f.item) for f in scene.closed if f.item.is_leaf and not self.outline.is_marker(f.item)}
        entries: list[tuple[str, str, str]] = [(kind.value, *self.theme.fills[kind]) for kind in OperationType if kind in kinds]
        entries.append(("closed module", self.theme.background, self.theme.soft))
        for name, fill, stroke in entries:
            if x + 36 + text_width(name, _LEGEND) > width - _SIDE:
                x, y = _SIDE, y + _LEGEND_ROW
            canvas.rect(x, y - 4, 15, 13, fill=fill, stroke=stroke, radius=3)
            canvas.text(x + 20, y + 7, name, size=_LEGEND, fill=self.theme.ink)
            x += 36 + text_width(name, _LEGEND)
        graph = self.outline.tree.graph
        opened = sum(frame.open for frame in scene.frames)
        parameters = graph.scopes[""].parameters
        words = f"{len(graph.where(kind='op')):,} ops · {format_count(parameters)} parameters · {len(scene.closed)} boxes shown, {opened} modules open"
        canvas.text(_SIDE, height - 12, words, size=_LEGEND, fill=self.theme.soft)
        canvas.text(width - _SIDE, height - 12, f"text from {SMALL * self.fit.scale:.1f} px", size=_LEGEND, fill=self.theme.soft, anchor="end")

"""A scene -> SVG: the boxes and lines in their colours, a title above, a legend and totals below."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from torchatlas.analysis.critical_path import critical_path
from torchatlas.errors import AnalysisError, InvalidInputError, UnknownNameError
from torchatlas.escapes import clean
from torchatlas.graph import EdgeKind, Graph, NodeKind, OperationType
from torchatlas.graph.columns import KINDS, PHASES, Array
from torchatlas.graph.subgraph import induced
from torchatlas.operations import type_of_box
from torchatlas.render.color_by import BOX_MEASURES, BoxMeasure, node_counts
from torchatlas.render.fonts import clipped, text_width
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.layout.line_labels import place_labels
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.scene import Frame, Line, Scene
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.tree import Tree
from torchatlas.render.margins import (
    Look,
    Margins,
    entry_width,
    pairs,
    path_weight,
    path_words,
    row_count,
    swatch_width,
)
from torchatlas.render.svg import Canvas, isolated, number
from torchatlas.render.theme import Theme, contrast, mixed
from torchatlas.units import format_bytes, format_count, format_flops, format_ns

_COUNTED = 20_000  # nodes up to which the work of a graph is counted for the footer: it takes a moment


class ScenePainter:
    """Draws one scene."""

    def __init__(
        self, look: Look, margins: Margins, outline: Outline, words: BoxWords, scene: Scene, scale: float
    ) -> None:
        self.look, self.margins, self.theme = look, margins, look.theme
        self.outline, self.words, self.scene, self.scale = outline, words, scene, scale
        self.graph: Graph = outline.tree.graph
        self.values: dict[Item, float] = {}
        if self.measure is not None:
            self.values = {frame.item: self.measure.value(frame.item) for frame in scene.closed}
        known = [value for value in self.values.values() if math.isfinite(value)]
        self.most = max(known, default=0.0)
        if look.sheet.fits_content:
            self._cut()
        self.canvas = Canvas(self.look.width, self.look.height, look.theme, self.look.sheet.inches)

    def _cut(self) -> None:
        """Make the sheet as high as what is drawn needs, with the rows of the legend that are used."""
        margins, look = self.margins, self.look
        if look.legend and self.measure is None:
            self.margins = margins = margins.with_rows(self._used_rows(), look.footer)
        height = max(self.scene.height * self.scale, 2 * margins.words)  # a sentence, if there is nothing to draw
        self.look = replace(look, sheet=look.sheet.cut(margins.top + height + margins.bottom))

    def _used_rows(self) -> int:
        widths = [entry_width(name, self.margins.words) for name, _, _ in self._entries()]
        return row_count(widths, self.look.width - 2 * self.margins.side) if widths else 1

    @cached_property
    def measure(self) -> BoxMeasure | None:
        if self.look.color_by == "type":
            return None
        try:
            return BOX_MEASURES[self.look.color_by](self.outline)
        except UnknownNameError as error:
            raise UnknownNameError(f"color_by: {error}; or 'type'") from None

    @cached_property
    def path(self) -> HighlightedPath:
        """The critical path."""
        tree = self.outline.tree
        chain = heaviest(tree, path_weight(self.look, tree)) if self.look.critical_path else []
        return HighlightedPath(self.outline, self.scene, chain)

    def drawn(self) -> Canvas:
        look, margins, scene, canvas = self.look, self.margins, self.scene, self.canvas
        self._title()
        room = margins.room(look)
        beside = max(0.0, (room[0] - scene.width * self.scale) / 2)
        place_labels(scene, beside / self.scale)
        left = margins.side + beside
        top = margins.top + (room[1] - scene.height * self.scale) / 2
        canvas.begin_group(f"translate({number(left)} {number(top)}) scale({self.scale:.4f})")
        for depth in range(-1, max((frame.depth for frame in scene.frames), default=-1) + 1):
            for frame in scene.frames:
                if frame.depth == depth:
                    self._frame(frame)
            self._lines([line for line in scene.lines if line.level == depth])
        for label in scene.labels:
            canvas.text(label.x, label.y, label.text, size=STYLE.small_text, fill=self.theme.soft)
        canvas.end_group()
        if not scene.frames:
            words = "nothing was recorded" if not len(self.graph) else "nothing to draw"
            canvas.text(
                look.width / 2, look.height / 2, words, size=margins.words, fill=self.theme.soft, anchor="middle"
            )
        self._footer()
        return canvas

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def _frame(self, frame: Frame) -> None:
        if frame.open:
            self._open(frame)
        else:
            self._closed(frame)

    def _colours(self, frame: Frame) -> tuple[str, str, str, str]:
        """Fill, stroke, ink and soft ink."""
        theme, item = self.theme, frame.item
        if self.outline.is_marker(item):
            fill, ink = theme.terminal
            return fill, fill, ink, ink
        if self.measure is not None:
            value = self.values[item]
            if value == math.inf:
                fill = _not_finite(theme)
                ink = max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, fill))
                return fill, theme.soft, ink, ink
            share = math.sqrt(value / self.most) if self.most > 0 and value >= 0 else value if value != value else 0.0
            fill, ink = theme.heat(share)
            return fill, theme.soft, ink, ink
        if item.is_leaf:
            return *theme.fills[self._type(item)], theme.ink, theme.soft
        return theme.background, theme.soft, theme.ink, theme.soft

    def _type(self, item: Item) -> OperationType:
        return type_of_box(self.outline.operation_type(item), item.type, self._ran.get(item.call, ()))

    @cached_property
    def _ran(self) -> dict[int, list[str]]:
        """Call of a module that is drawn as one box -> the ops it ran, in all phases."""
        columns, operations = self.graph.columns, self.graph.tables.operations
        calls = [frame.item.call for frame in self.scene.closed if frame.item.is_leaf and frame.item.call >= 0]
        nodes = np.flatnonzero(np.isin(columns["node_call"], calls)) if calls else np.zeros(0, np.int64)
        ran: dict[int, list[str]] = {}
        for operation, call in pairs(columns["node_operation"][nodes], columns["node_call"][nodes]):
            ran.setdefault(call, []).append(operations[operation].name)
        return ran

    def _closed(self, frame: Frame) -> None:
        canvas, item = self.canvas, frame.item
        fill, stroke, ink, soft = self._colours(frame)
        thick = STYLE.op_border if item.is_leaf else STYLE.closed_group_border
        if frame in self.path.boxes:
            stroke, thick = self.theme.accent, STYLE.path_border
        x, y, width, height = frame.x, frame.y, frame.width, frame.height
        radius = height / 2 if self.outline.is_marker(item) else STYLE.box_corner
        if item.repeat > 1:
            for behind in (STYLE.stack, STYLE.stack / 2):
                canvas.rect(x + behind, y + behind, width, height, fill=fill, stroke=stroke, radius=STYLE.box_corner)
        title = _tooltip(self.words, item, None if self.outline.is_marker(item) else self.measure)
        canvas.rect(x, y, width, height, fill=fill, stroke=stroke, stroke_width=thick, radius=radius, title=title)
        badge = text_width(f"×{item.repeat:,}", STYLE.small_text, True) + 10 if item.repeat > 1 else 0.0
        middle = x + width / 2
        at = middle - (badge / 2 + 2 if badge else 0.0) + (0.0 if item.is_leaf else 6.0)
        up = (height - (36 if frame.subtitle else 24)) / 2
        base = y + up + (15.5 if frame.subtitle else 16.2)
        canvas.text(at, base, frame.title, size=STYLE.title_text, fill=ink, bold=True, anchor="middle")
        canvas.text(middle, y + up + 29.5, frame.subtitle, size=STYLE.small_text, fill=soft, anchor="middle")
        if not item.is_leaf:
            self._plus(at - text_width(frame.title, STYLE.title_text, True) / 2 - 12, y + up + 11, soft)
        if badge:
            self._badge(x + width - 6, y + 4, f"×{item.repeat:,}")

    def _plus(self, x: float, y: float, stroke: str, arm: float = 4.0) -> None:
        both = number(2 * arm)
        d = f"M{number(x - arm)} {number(y)}h{both}M{number(x)} {number(y - arm)}v{both}"
        self.canvas.path(d, stroke=stroke, stroke_width=0.375 * arm)

    def _open(self, frame: Frame) -> None:
        canvas, tints = self.canvas, self.theme.tints
        level = min(frame.depth + 1, len(tints) - 3)
        ground, head = tints[level], tints[level + 2]
        x, y, width, height = frame.x, frame.y, frame.width, frame.height
        outline, corner = mixed(self.theme.line, self.theme.soft, 0.3), STYLE.group_corner
        if frame.item.repeat > 1:
            for behind in (STYLE.stack, STYLE.stack / 2):
                canvas.rect(
                    x + behind, y + behind, width, height, fill=ground, stroke=outline, radius=STYLE.group_corner
                )
        canvas.rect(x, y, width, height, fill=ground, stroke=outline, radius=corner)
        across, drop = number(width - 2 * corner), number(STYLE.heading - corner)
        left, bottom, turn = number(x + 0.5), number(y + STYLE.heading), number(corner - 0.5)
        far = number(0.5523 * (corner - 0.5))  # of the control points from the ends of a quarter of a circle
        rest = number(0.4477 * (corner - 0.5))
        round_up, round_down = f"c0 -{far} {rest} -{turn} {turn} -{turn}", f"c{far} 0 {turn} {rest} {turn} {turn}"
        d = f"M{left} {bottom}v-{drop}{round_up}h{across}{round_down}v{drop}z"
        canvas.path(d, fill=head, title=_tooltip(self.words, frame.item))
        canvas.text(x + 10, y + 15.5, frame.title, size=STYLE.title_text, fill=self.theme.ink, bold=True)
        after = x + 17 + text_width(frame.title, STYLE.title_text, True)
        canvas.text(after, y + 15.5, self._heading(frame), size=STYLE.small_text, fill=self.theme.soft)
        if frame.item.repeat > 1:
            self._badge(x + width - 8, y + 3, f"×{frame.item.repeat:,}")

    def _heading(self, frame: Frame) -> str:
        """What stands beside the title of an open group: more than it was laid out for where there is room."""
        room = frame.width - text_width(frame.title, STYLE.title_text, True) - STYLE.beside_heading
        room -= text_width(f"×{frame.item.repeat:,}", STYLE.small_text, True) + 18 if frame.item.repeat > 1 else 0.0
        if room <= text_width(frame.subtitle, STYLE.small_text):
            return frame.subtitle
        return self.words.heading(frame.item, room)

    def _badge(self, right: float, y: float, text: str, size: float = STYLE.small_text) -> None:
        width, height = text_width(text, size, True) + 10, size * 1.45
        fill, ink = self.theme.terminal
        self.canvas.rect(right - width, y, width, height, fill=fill, radius=height / 2)
        self.canvas.text(right - width / 2, y + size * 1.09, text, size=size, fill=ink, bold=True, anchor="middle")

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _lines(self, lines: list[Line]) -> None:
        lines = sorted(lines, key=self.path.lines.__contains__)  # those to look at lie on top
        for line in lines:
            colour, thick = self.theme.edge, STYLE.line_width if line.many == 1 else STYLE.many_line_width
            if line in self.path.lines:
                colour, thick = self.theme.accent, STYLE.path_line_width
            dash = "4 3" if line.returning else ""
            if len(line.points) == 1:
                self.canvas.circle(*line.points[0], STYLE.dot, fill=colour)
            else:
                self.canvas.rounded(line.points, STYLE.line_corner, stroke=colour, stroke_width=thick, dash=dash)
        for line in lines:
            if line.arrow and len(line.points) > 1:
                before, (x, y) = line.points[-2:]
                colour = self.theme.accent if line in self.path.lines else self.theme.edge
                if self.scene.sideways:
                    self.canvas.arrow_head(x, y, "left" if x < before[0] else "right", fill=colour, size=STYLE.arrow)
                else:
                    self.canvas.arrow_head(x, y, "up" if y < before[1] else "down", fill=colour, size=STYLE.arrow)

    # -- words ---------------------------------------------------------------------------------------------------------

    def _title(self) -> None:
        look, margins = self.look, self.margins
        if look.title is None:
            return
        room = look.width - 2 * margins.side
        unnamed = "autograd graph" if self.outline.tree.graph.source == "autograd" else "computation"
        title = clipped(clean(look.title or self._model() or unnamed), margins.title, room, True)
        base = margins.title * 1.2 + 6
        self.canvas.text(margins.side, base, title, size=margins.title, fill=self.theme.ink, bold=True)
        left = margins.side + text_width(title, margins.title, True) + margins.words
        beside = _fitting([" · ".join(self._kind())], margins.words * 1.15, look.width - margins.side - left)
        self.canvas.text(left, base, beside, size=margins.words * 1.15, fill=self.theme.soft)
        self.canvas.rect(margins.side, base + margins.title * 0.45, room, 1, fill=self.theme.line)

    def _model(self) -> str:
        """The class of the model, if there is one around all."""
        return next((module.type for module in self.graph.tables.modules if not module.path), self.outline.root.type)

    def _kind(self) -> list[str]:
        """The model's class beside a title of one's own, and which phases there are."""
        root = self.outline.root
        names = [] if not self.look.title or self._model() == self.look.title else [self._model()]
        names += [item.name for item in self.outline.children(root) if item.kind == "lane"] or self._phases()
        return list(dict.fromkeys(clean(name) for name in names if name))

    def _phases(self) -> list[str]:
        """The phases that are drawn, if not all are."""
        is_op = self.graph.columns["node_kind"] == KINDS.index(NodeKind.OP)
        every = [PHASES[row] for row in np.unique(self.graph.columns["node_phase"][is_op])]
        shown = [phase.value for phase in self.look.phases or () if phase in every]
        return shown if len(shown) < len(every) else []

    def _footer(self) -> None:
        look, margins, canvas = self.look, self.margins, self.canvas
        if not look.legend and not look.footer:
            return
        room = look.width - 2 * margins.side
        used = self._used_rows() if look.legend and self.measure is None else 1
        top = look.height - margins.bottom + max(margins.rows - used, 0) * margins.words * 1.75
        canvas.rect(margins.side, top + 8, room, 1, fill=self.theme.line)
        if look.legend and self.measure is not None:
            self._scale(top + 8 + margins.words * 1.5)
        elif look.legend:
            self._legend(top + 8 + margins.words * 1.5)
        if not look.footer:
            return
        base = look.height - margins.words * 0.8
        words = _fitting(self._totals(), margins.words, room)
        canvas.text(margins.side, base, words, size=margins.words, fill=self.theme.soft)
        size = "" if look.sheet.on_paper else f"text from {STYLE.small_text * self.scale:.1f} px"
        if text_width(words, margins.words) + text_width(size, margins.words) + 20 < room:
            canvas.text(look.width - margins.side, base, size, size=margins.words, fill=self.theme.soft, anchor="end")

    def _totals(self) -> list[str]:
        """The text of the footer in full, then shorter and shorter wordings; all tell the number of ops."""
        graph, scene = self.graph, self.scene
        is_op = graph.columns["node_kind"] == KINDS.index(NodeKind.OP)
        if self.look.phases is not None:
            is_op &= np.isin(graph.columns["node_phase"], [PHASES.index(phase) for phase in self.look.phases])
        drawn, every = self.words.operations(self.outline.root), int(is_op.sum())
        operations = f"{drawn:,} op{'' if drawn == 1 else 's'}"
        hidden = f" ({every:,} with {self._without_box(is_op)})" if every > drawn else ""
        parameters = self.words.parameters_of("")
        words = {"parameters": f"{format_count(parameters)} parameters" if parameters else ""}
        words["work"] = _work(graph, is_op) if 0 < len(graph) <= _COUNTED else ""
        times = graph.columns["node_time_ns"][is_op]
        time = graph.measured(None if self.look.phases is None else is_op)
        if time is not None and (self.look.phases is None or (times >= 0).all()):
            words["time"] = f"{format_ns(time.ns)} in ops ({time.what})"
        if graph.peak_bytes and self.look.phases is None:
            words["peak"] = f"peak {format_bytes(graph.peak_bytes)}"
        opened = sum(frame.open for frame in scene.frames)
        words["open"] = f"{len(scene.closed):,} boxes shown, {opened:,} group{'' if opened == 1 else 's'} open"
        wordings = []
        for dropped in ("", "open", "peak", "work", "time", "hidden", "parameters"):
            hidden = "" if dropped == "hidden" else hidden
            words.pop(dropped, None)
            wordings.append(" · ".join(part for part in (operations + hidden, *words.values()) if part))
        return wordings

    def _without_box(self, is_op: Array) -> str:
        """The kinds of ops that have no box and so are not counted, in words."""
        graph = self.graph
        rows = np.unique(graph.columns["node_operation"][is_op & ~self.outline.tree.is_leaf])
        only_views = all(graph.tables.operations[row].type == OperationType.VIEW for row in rows)
        return "views" if only_views else "views and bookkeeping"

    def _entries(self) -> list[tuple[str, str, str]]:
        """What the legend explains: names, with fill and stroke."""
        theme = self.theme
        closed = [frame.item for frame in self.scene.closed]
        shown = {self._type(item) for item in closed if item.is_leaf and not self.outline.is_marker(item)}
        entries = [(kind.value, *theme.fills[kind]) for kind in OperationType if kind in shown]
        if any(not item.is_leaf for item in closed):
            entries.append(("closed group", theme.background, theme.soft))
        if any(frame.item.repeat > 1 for frame in self.scene.frames):
            differ = any(frame.item.alike_only for frame in self.scene.frames)
            entries.append(("×n repeats" if differ else "×n identical repeats", "", ""))
        if self.path.boxes:
            entries.append((path_words(self.look, self.outline.tree), theme.accent, theme.accent))
        return entries

    def _legend(self, y: float) -> None:
        margins = self.margins
        x, row = margins.side, 0
        for name, fill, stroke in self._entries():
            width = entry_width(name, margins.words)
            if x > margins.side and x + width > self.look.width - margins.side:
                x, row = margins.side, row + 1
            if row < margins.rows:
                self._entry(x, y + row * margins.words * 1.75, name, fill, stroke)
            x += width

    def _entry(self, x: float, y: float, name: str, fill: str, stroke: str) -> None:
        size, ink = self.margins.words, self.theme.ink
        if not fill:
            sample, _, words = name.partition(" ")
            width = text_width(sample, size, True) + 10
            self._badge(x + width, y - size * 1.09, sample, size)
            self.canvas.text(x + width + 5, y, words, size=size, fill=ink)
            return
        width = swatch_width(size)
        part = width / STYLE.swatch
        self.canvas.rect(x, y - 11 * part, width, 13 * part, fill=fill, stroke=stroke, radius=3 * part)
        if name == "closed group":
            self._plus(x + width / 2, y - 4.5 * part, stroke, 4 * part)
        self.canvas.text(x + width + 5, y, name, size=size, fill=ink)

    def _scale(self, y: float) -> None:
        """The ramp of a measure, from nothing to the most."""
        assert self.measure is not None
        margins, theme, steps = self.margins, self.theme, 48
        x, part = margins.side, swatch_width(margins.words) / STYLE.swatch
        height = 13 * part
        self.canvas.text(x, y, self.measure.title, size=margins.words, fill=theme.ink)
        x += text_width(self.measure.title, margins.words) + 12
        for step in range(steps):
            fill, _ = theme.heat((step + 0.5) / steps)
            self.canvas.rect(x + step * STYLE.ramp / steps, y - 11 * part, STYLE.ramp / steps + 0.4, height, fill=fill)
        self.canvas.rect(x, y - 11 * part, STYLE.ramp, height, stroke=theme.line)
        x += STYLE.ramp + 8
        most = f"0 to {self.measure.text(self.most)}"
        path = f"; bold: {path_words(self.look, self.outline.tree)}" if self.path.boxes else ""
        boxes = [frame.item for frame in self.scene.closed if not self.outline.is_marker(frame.item)]
        rounds = self.measure.of_rounds(boxes)
        rounds = f"; ×n: {rounds}" if rounds else ""
        grey = f"; grey: {self.measure.grey}" if any(math.isnan(self.values[item]) for item in boxes) else ""
        more = [f"{rounds}{grey}{path}", f"{rounds}{grey}", grey, ""]
        wordings = [f"{most}, by its square root{more[0]}", *(most + words for words in more)]
        odd = "not finite" if any(self.values[item] == math.inf for item in boxes) else ""
        room = self.look.width - margins.side - x - (entry_width(odd, margins.words) if odd else 0.0)
        words = _fitting(wordings, margins.words, room)
        self.canvas.text(x, y, words, size=margins.words, fill=theme.soft)
        if odd:
            self._entry(x + text_width(words, margins.words) + 16, y, odd, _not_finite(theme), theme.soft)


def _tooltip(words: BoxWords, item: Item, measure: BoxMeasure | None = None) -> str:
    """What a browser shows when the pointer rests on a box."""
    text = words.tooltip(item)
    return isolated(f"{text}\n{measure.tooltip(item)}" if measure else text)


def _not_finite(theme: Theme) -> str:
    """The fill of what is no number: a blue, as no ramp has one."""
    return theme.fills[OperationType.CONVOLUTION][1]


def _fitting(wordings: list[str], size: float, room: float) -> str:
    """The first wording that fits; empty if none does. No word is cut."""
    return next((words for words in wordings if text_width(words, size) <= room), "")


def heaviest(tree: Tree, by: str) -> list[int]:
    """The leaves on the critical path of what is drawn. It follows tensors only: no line leads to an op that merely
    waits for a write in place."""
    drawn = np.flatnonzero(tree.leaf_of_node >= 0)
    if not len(drawn):
        return []
    graph = tree.graph
    bare = Graph(graph.columns, graph.tables, source=graph.source, metadata=graph.metadata)  # tensors weigh nothing
    chain = critical_path(induced(bare, drawn), by=by, kinds=(EdgeKind.DATA,)).ids
    leaves: list[int] = tree.leaf_of_node[drawn[chain]].tolist()
    return leaves


def _work(graph: Graph, nodes: Array) -> str:
    try:
        counts = node_counts(graph)
    except (AnalysisError, InvalidInputError):  # shapes that cannot be evaluated: the picture does without
        return ""
    total = int(np.maximum(counts.flops, 0)[nodes].sum())
    return ("≥ " if counts.uncosted else "") + format_flops(total) if total else ""

"""A scene -> what is wrong with it: boxes that overlap, lines that run through boxes or into each other, lines that are
missing or that nothing in the graph stands for. Tests and benchmarks run it on every picture they make.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from torchatlas.render.fonts import text_width
from torchatlas.render.layout.highlight import HighlightedPath
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.routing import Point
from torchatlas.render.layout.scene import Frame, Line, Scene
from torchatlas.render.layout.style import STYLE
from torchatlas.render.layout.tree import Tree
from torchatlas.render.layout.wiring import OUTPUTS, first_of_repeats

_NEAR = 1.5  # closer than this is the same place

Area = tuple[float, float, float, float]


@dataclass(frozen=True)
class Account:
    """What became of the edges of a graph."""

    drawn: int
    inside: int  # both ends are in one box
    repeated: int  # in a repeat, of which the first is drawn
    kept: int  # between lanes: drawn as one line for all
    missing: list[str]
    invented: list[str]


def defects(scene: Scene) -> list[str]:
    """What can be seen to be wrong, in words; empty for a good picture."""
    return [*_overlaps(scene), *_outside(scene), *_through(scene), *_shared(scene), *_loose(scene), *_labels(scene)]


def upright(scene: Scene) -> Scene:
    """A scene whose lines lead to the right, turned so that they lead down."""
    if not scene.sideways:
        return scene
    frames = [replace(one, x=one.y, y=one.x, width=one.height, height=one.width) for one in scene.frames]
    lines = [replace(line, points=tuple((y, x) for x, y in line.points)) for line in scene.lines]
    return replace(scene, width=scene.height, height=scene.width, frames=frames, lines=lines)


def _heading(scene: Scene) -> float:
    """What lies between the border of an open frame and where lines in it begin. Sideways they begin at the border."""
    return 0.0 if scene.sideways else STYLE.heading


def _area(frame: Frame) -> Area:
    behind = STYLE.stack if frame.item.repeat > 1 else 0.0
    return frame.x, frame.y, frame.x + frame.width + behind, frame.y + frame.height + behind


def _solid(frame: Frame) -> Area:
    """Where no line may run: a closed box, the heading of an open one."""
    return frame.x, frame.y, frame.x + frame.width, frame.y + (STYLE.heading if frame.open else frame.height)


def _borders(frame: Frame) -> list[Area]:
    """The sides of an open frame but for its heading, with what looks out behind a repeat."""
    if not frame.open:
        return []
    x0, y0, x1, y1 = _area(frame)
    right, bottom = frame.x + frame.width, frame.y + frame.height
    return [(x0, y0, x0, bottom), (right, y0, x1, y1), (x0, bottom, x1, y1)]


def _meet(a: Area, b: Area, by: float = _NEAR) -> bool:
    return a[0] < b[2] - by and a[2] > b[0] + by and a[1] < b[3] - by and a[3] > b[1] + by


def _pieces(line: Line) -> Iterator[Area]:
    for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False):
        yield min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)


def _overlaps(scene: Scene) -> Iterator[str]:
    siblings: dict[int, list[Frame]] = defaultdict(list)
    for frame in scene.frames:
        siblings[id(frame.item.parent)].append(frame)
    for frames in siblings.values():
        for i, one in enumerate(frames):
            for other in frames[:i]:
                if _meet(_area(one), _area(other)):
                    yield f"{one.title} {one.subtitle!r} and {other.title} {other.subtitle!r} overlap"


def _outside(scene: Scene) -> Iterator[str]:
    by_item = {id(frame.item): frame for frame in scene.frames}
    for frame in scene.frames:
        above = by_item.get(id(frame.item.parent))
        x0, y0, x1, y1 = _area(frame)
        room = (0.0, 0.0, scene.width, scene.height)
        if above is not None:
            room = (above.x, above.y + STYLE.heading, above.x + above.width, above.y + above.height)
        if x0 < room[0] - _NEAR or y0 < room[1] - _NEAR or x1 > room[2] + _NEAR or y1 > room[3] + _NEAR:
            yield f"{frame.title} {frame.subtitle!r} lies outside its group"
        if (
            text_width(frame.title, 12.5, True) > frame.width
            or text_width(frame.subtitle, STYLE.small_text) > frame.width
        ):
            yield f"the text of {frame.title} is wider than its box"


def _through(scene: Scene) -> Iterator[str]:
    solid = [(frame, _solid(frame)) for frame in scene.frames]
    for line in scene.lines:
        for piece in _pieces(line):
            for frame, area in solid:
                if (
                    piece[0] < area[2] - _NEAR
                    and piece[2] > area[0] + _NEAR
                    and piece[1] < area[3] - _NEAR
                    and piece[3] > area[1] + _NEAR
                ):
                    yield f"a line of {line.net} runs through {frame.title} {frame.subtitle!r}"


def _shared(scene: Scene) -> Iterator[str]:
    upright: dict[int, list[tuple[float, float, float, Line]]] = defaultdict(list)
    level: dict[int, list[tuple[float, float, float, Line]]] = defaultdict(list)
    for line in scene.lines:
        for x0, y0, x1, y1 in _pieces(line):
            if x1 - x0 < 0.3:
                upright[round(x0 / 2)].append((x0, y0, y1, line))
            else:
                level[round(y0 / 2)].append((y0, x0, x1, line))
    for table in (upright, level):
        for cell, pieces in table.items():
            near = pieces + table.get(cell + 1, [])
            for i, (at, low, high, line) in enumerate(pieces):
                for other_at, other_low, other_high, other in near[i + 1 :]:
                    along = min(high, other_high) - max(low, other_low)
                    if line.net != other.net and abs(at - other_at) < 2 and along > 2:
                        where = f"{at:.0f}, {max(low, other_low):.0f}"
                        yield f"lines of {line.net} and {other.net} lie on each other at {where}"


def _loose(scene: Scene) -> Iterator[str]:
    """Lines at the border of an open frame that do not go on at the same place beyond it: they come from nowhere, or
    lead there, and are taken for tensors of their own."""
    scene, head = upright(scene), _heading(scene)
    lines = [line for line in scene.lines if line.net >= 0 and not line.returning]  # thick ones end at borders
    for frame in scene.frames:
        if not frame.open:
            continue
        left, top, _, bottom = _area(frame)
        own = [
            line for line in lines if any(left <= x <= left + frame.width for x, _ in (line.points[0], line.points[-1]))
        ]
        begin, end = defaultdict[int, list[Point]](list), defaultdict[int, list[Point]](list)
        for line in own:
            begin[line.net].append(line.points[0])
            end[line.net].append(line.points[-1])
        # A line that leads back, as between groups that wait for each other, goes up from the one to the other.
        back = {line.net for line in own if _leads_back(line, top, bottom)}
        # Where a line may begin or end, and where another then ends or begins.
        for ends, at, others, beyond, words in (
            (begin, top + head, end, top, "comes from nowhere into"),
            (end, top, begin, top + head, "leads nowhere in"),
            (end, bottom, begin, bottom, "leads nowhere out of"),
            (begin, bottom, end, bottom, "comes from nowhere out of"),
        ):
            for net in ends.keys() - back:
                for x, y in ends[net]:
                    on_border = abs(y - at) < _NEAR and left <= x <= left + frame.width
                    if on_border and not any(abs(a - x) + abs(b - beyond) < _NEAR for a, b in others[net]):
                        yield f"a line of {net} {words} {frame.title} {frame.subtitle!r} at {x:.0f}"


def _leads_back(line: Line, top: float, bottom: float) -> bool:
    """Whether a line leaves the upper border of a frame, or goes up to the lower one."""
    up = line.points[-2][1] > line.points[-1][1]
    return abs(line.points[0][1] - top) < _NEAR or (up and abs(line.points[-1][1] - bottom) < _NEAR)


def _labels(scene: Scene) -> Iterator[str]:
    areas = [
        (label.x, label.y - 9, label.x + text_width(label.text, STYLE.small_text), label.y + 2)
        for label in scene.labels
    ]
    solid = [_solid(frame) for frame in scene.frames]
    borders = [border for frame in scene.frames for border in _borders(frame)]
    pieces = [piece for line in scene.lines for piece in _pieces(line)]
    for label, area in zip(scene.labels, areas, strict=True):
        if any(_meet(area, other, 0.5) for other in solid):
            yield f"the label {label.text} lies on a box"
        if any(_meet(area, border, 0.0) for border in borders):
            yield f"the label {label.text} lies on a border"
        if any(_meet(area, piece, 0.0) for piece in pieces):
            yield f"the label {label.text} lies on a line"
        if sum(_meet(area, other, 0.0) for other in areas) > 1:
            yield f"the label {label.text} lies on another"
        if area[0] < -scene.beside - _NEAR or area[2] > scene.width + scene.beside + _NEAR:
            yield f"the label {label.text} lies in the margin of the page"


# -- is what is marked one chain? -----------------------------------------------------------------------------------


def broken(scene: Scene, way: HighlightedPath) -> list[str]:
    """Where what is marked on a page is not one chain, in words: a box that no marked lines lead to from the one
    before, a line that leads from none to the next."""
    marked = [_marked(scene, line) for line in way.lines]
    unused, found = set(way.lines), list[str]()
    for one, other in itertools.pairwise(way.chain):
        used = _leading([each for each in marked if each.start != each.stop], _nest(scene, one), _nest(scene, other))
        repeats = {line.ends[1] for line in used if line.returning}
        unused -= used | {each.line for each in marked if each.start == each.stop and each.stop in repeats}
        if not used:
            found.append(f"no marked lines lead from {one.title} {one.subtitle!r} to {other.title} {other.subtitle!r}")
    return found + [f"a line of {line.net} is marked beside the chain" for line in unused]


@dataclass(frozen=True)
class _Marked:
    line: Line
    start: int | None  # the frames it joins
    stop: int | None
    begins_within: bool  # whether it lies in the frame where it begins, and in that where it ends
    ends_within: bool
    branches: bool = False  # whether it begins on another line

    @property
    def is_loose(self) -> bool:
        """Whether it joins frames of which it does not say what in them."""
        return self.line.returning or self.line.net < 0

    def leads_to(self, other: _Marked) -> bool:
        """Whether the other goes on where this one ends: within a frame that it comes to, beyond one that it leaves.

        The dashed line of a repeat may begin on a line that leaves the repeat."""
        if other.branches:
            return not self.line.returning and _passes(self.line, other.line.points[0])
        return self.stop == other.start and self.ends_within != other.begins_within


def _marked(scene: Scene, line: Line) -> _Marked:
    if line.returning:
        branches = any(not other.returning and _passes(other, line.points[0]) for other in scene.lines)
        return _Marked(line, *line.ends, False, False, branches)
    start, stop = _owner(scene, line.points[0]), _owner(scene, line.points[-1])
    within = [end is not None and scene.frames[end].depth == line.level for end in (start, stop)]
    return _Marked(line, start, stop, *within)


def _passes(line: Line, point: Point) -> bool:
    """Whether a point is on a line, whose pieces are level or upright."""
    return any(
        all(min(ends) - _NEAR < at < max(ends) + _NEAR for at, *ends in zip(point, *piece, strict=True))
        for piece in itertools.pairwise(line.points)
    )


def _nest(scene: Scene, frame: Frame) -> list[int]:
    """A frame and those around it, outwards, by number."""
    number = {id(each.item): position for position, each in enumerate(scene.frames)}
    found, item = list[int](), frame.item
    while id(item) in number:
        found.append(number[id(item)])
        item = item.parent  # type: ignore[assignment]
    return found


def _leading(marked: list[_Marked], out: list[int], into: list[int]) -> set[Line]:
    """The marked lines that lead from one box to another, through no third; none if they do not."""

    def is_first(each: _Marked) -> bool:
        return each.start == out[0] or (each.is_loose and each.start in out)

    def is_last(each: _Marked) -> bool:
        return each.stop == into[0] or (each.is_loose and each.stop in into)

    reached = [each for each in marked if is_first(each) and not each.branches]
    for each in reached:
        if each.line.returning or not is_last(each):  # what a round gets from the one before may have a line from there
            reached += [other for other in marked if each.leads_to(other) and other not in reached]
    used = [each for each in reached if is_last(each)]
    for each in used:
        used += [other for other in reached if other.leads_to(each) and other not in used]
    return {each.line for each in used}


# -- is it the graph? -----------------------------------------------------------------------------------------------


def account(outline: Outline, scene: Scene) -> Account:
    """Follow every edge of the tree along the lines of the scene, by what is drawn alone."""
    tree, ways = outline.tree, _ways(scene)
    number = {id(frame.item): position for position, frame in enumerate(scene.frames)}
    used: set[Step] = set()
    drawn = inside = repeated = 0
    missing: list[str] = []
    for source, output, target in zip(tree.source.tolist(), tree.output.tolist(), tree.target.tolist(), strict=True):
        begin, _ = _visible(outline, scene, number, source)
        end, is_first = _visible(outline, scene, number, target)
        net = outline.net(source * OUTPUTS + min(output, OUTPUTS - 1))
        path = _follow(ways, net, begin, end) if is_first and begin != end else set()
        if not is_first:
            repeated += 1
        elif begin == end:
            inside += 1
        elif path is None:
            missing.append(f"{scene.frames[begin].title} -> {scene.frames[end].title} ({net})")
        else:
            drawn += 1
            used |= path
    every = {(start, stop, net) for start, steps in ways.items() for stop, net, _ in steps if net >= 0}
    titles = [frame.title for frame in scene.frames]
    invented = [f"{titles[start]} -> {titles[stop]} ({net})" for start, stop, net in every - used]
    return Account(drawn, inside, repeated, len(tree.kept_source), missing, invented)


def hidden(outline: Outline, scene: Scene) -> list[str]:
    """What boxes that stand for several rounds do not tell, in words: one is wired, reads or is read as others are not.

    All read what the first does, or the one before; what one sends elsewhere all do, and the last may send more. Also
    of rounds that differ, as the box says, in sizes or numbers; these may as well each read all before them.
    """
    number = {id(frame.item): position for position, frame in enumerate(scene.frames)}
    boxes: dict[int, int] = {}

    def box_of(leaf: int) -> int:
        if leaf not in boxes:
            boxes[leaf] = _visible(outline, scene, number, leaf)[0]
        return boxes[leaf]

    found = []
    for frame in scene.frames:
        if frame.item.repeat > 1:
            title = f"{frame.title} {frame.subtitle!r}"
            rounds = _rounds(outline, frame.item)
            found += [f"a round of {title} {words}" for words in _odd_reads(rounds, frame.item.alike_only)]
            if _odd_readers(outline.tree, frame.item, box_of):
                found.append(f"a round of {title} is read where others are not")
            if frame.open and _is_lost(outline, scene, number, frame, rounds[1]):
                found.append(f"a round of {title} hands on what no dashed line shows")
    return found


def _is_lost(outline: Outline, scene: Scene, number: dict[int, int], frame: Frame, second: list[_Read]) -> bool:
    """Whether the second round reads something of the first of which nothing joins the dashed line: from an open box
    in it one line for each tensor, from a closed one, which may be a line for many, one at least. Or their number is
    said, if there is room for it.
    """
    own = number[id(frame.item)]
    parts, tensors = outline.children(frame.item), set[tuple[int, int, int]]()  # box, leaf in it, output
    for read in second:
        if read.maker == 0:
            leaf = frame.item.start + read.made
            (part,) = (part for part in parts if part.start <= leaf < part.end)
            tensors.add((number[id(part)], (leaf - part.start) % (part.stop - part.start), read.output))
    dashed = [line for line in scene.lines if line.returning and line.ends[1] == own]
    nets, said = {line.net for line in dashed}, [*((label.net, label.text) for label in scene.labels), *scene.no_room]
    if any(net in nets and text == f"{len(tensors):,} tensors" for net, text in said):
        return False
    wanted = Counter(box for box, _, _ in tensors)
    joined = Counter(line.ends[0] for line in dashed)
    return any(joined[box] < (many if scene.frames[box].open else 1) for box, many in wanted.items())


_OUTSIDE, _ITSELF = -1, -2


@dataclass(frozen=True, order=True)
class _Read:
    """One edge into a round, in terms that are equal for rounds that are wired alike."""

    place: int  # of the reader in its round
    maker: int  # the round it comes from, or _ITSELF or _OUTSIDE
    made: int  # where in that round; from outside which net
    output: int


def _rounds(outline: Outline, item: Item) -> list[list[_Read]]:
    """What the rounds of a repeat read, in the order of their leaves and of the inputs of those.

    Rounds side by side may read different outputs of one op of their group, as of a split: one line leads to them all.
    """
    tree, size = outline.tree, item.stop - item.start
    edges = slice(tree.first_edge[item.start], tree.first_edge[item.end])
    inner = (tree.source[edges] >= item.start) & (tree.source[edges] < item.end)
    linked = ((tree.source[edges] - item.start) // size != (tree.target[edges] - item.start) // size)[inner].any()
    around = [
        group.start for group, _, _ in outline.around(item.start) if group.end - group.start > item.end - item.start
    ]
    begin = tree.first_edge.size if linked else (around[-1] if around else 0)
    found: list[list[_Read]] = [[] for _ in range(item.repeat)]
    nets: dict[int, int] = {}
    for edge in range(int(tree.first_edge[item.start]), int(tree.first_edge[item.end])):
        source, output = int(tree.source[edge]), int(tree.output[edge])
        turn, place = divmod(int(tree.target[edge]) - item.start, size)
        if item.start <= source < item.end:
            maker, made = divmod(source - item.start, size)
            found[turn].append(_Read(place, maker if maker != turn else _ITSELF, made, output))
        else:
            tensor = source * OUTPUTS + (min(output, OUTPUTS - 1) if source < begin else 0)
            if tensor not in nets:
                nets[tensor] = outline.net(tensor)
            found[turn].append(_Read(place, _OUTSIDE, nets[tensor], 0))
    return found


def _odd_reads(rounds: list[list[_Read]], alike_only: bool) -> Iterator[str]:
    """How rounds read otherwise than others. Inputs are compared in their order: f(a, b) is not f(b, a)."""
    inner = [[read for read in each if read.maker == _ITSELF] for each in rounds]
    if any(each != inner[0] for each in inner):
        yield "is wired otherwise inside"
    far = any(0 <= read.maker < turn - 1 for turn, each in enumerate(rounds) for read in each)
    if far and alike_only:  # each reads what the one before does, and that one
        links = [
            [replace(read, maker=0) for read in each if read.maker == turn] for turn, each in enumerate(rounds[1:])
        ]
        others = [[read for read in each if read.maker != turn] for turn, each in enumerate(rounds[1:])]
        if others != rounds[:-1] or any(each != links[0] for each in links):
            yield "does not read all before it as others do"
        return
    if far:
        yield "reads one that is not before it"
    given = {read for read in rounds[0] if read.maker == _OUTSIDE}
    if any(read.maker == _OUTSIDE and read not in given for each in rounds[1:] for read in each):
        yield "reads what the first does not"
    near = [[replace(read, maker=min(read.maker, 0)) for read in each] for each in rounds[1:]]  # 0: the one before
    if any(each != near[0] for each in near):
        yield "reads otherwise than the second"
    if not _begins(rounds[0], near[0]):
        yield "reads otherwise than the first"


def _begins(first: list[_Read], second: list[_Read]) -> bool:
    """Whether the first round reads what the second does, and anything in the place of what that gets from it."""
    for place in {read.place for read in (*first, *second)}:
        one, other = ([read for read in each if read.place == place] for each in (first, second))
        kept = [read for read in other if read.maker != 0]
        if len(one) == len(other):
            if any(a != b and (b in kept or a.maker != _OUTSIDE) for a, b in zip(one, other, strict=True)):
                return False
        # A first state that no edge leads from, or several do, as a parameter, or what is written in parts.
        elif kept == other or any(read not in one for read in kept):
            return False
    return True


def _odd_readers(tree: Tree, item: Item, box_of: Callable[[int], int]) -> bool:
    """Whether what reads rounds of a repeat, beyond these, is not the same box for all; the last may have more."""
    sent: list[set[tuple[int, int, int]]] = [set() for _ in range(item.repeat)]
    leaving = tree.by_source[tree.first_read[item.start] : tree.first_read[item.end]]
    for edge in leaving[tree.target[leaving] >= item.end].tolist():
        turn, place = divmod(int(tree.source[edge]) - item.start, item.stop - item.start)
        sent[turn].add((place, int(tree.output[edge]), box_of(int(tree.target[edge]))))
    # Of two rounds the last is the only other one: it may have more only if the first has nothing.
    more = bool(sent[0]) and item.repeat == 2 and sent[0] != sent[1]
    return any(each != sent[0] for each in sent[:-1]) or not sent[0] <= sent[-1] or more


Step = tuple[int, int, int]  # from frame, to frame, net


def _visible(outline: Outline, scene: Scene, number: dict[int, int], leaf: int) -> tuple[int, bool]:
    """The closed box that a leaf is in or is, and whether it is in the first of every repeat around it."""
    item, is_first = outline.root, True
    while True:
        items = outline.children(item)
        first = int(first_of_repeats(np.array([leaf]), items)[0])
        if first != leaf:
            is_first, leaf = False, first
        item = next(part for part in items if part.start <= leaf < part.stop)
        if not scene.frames[number[id(item)]].open:
            return number[id(item)], is_first


def _ways(scene: Scene) -> dict[int, list[tuple[int, int, bool]]]:
    """From every frame where its lines lead: to which frame, of which net, and whether both are closed."""
    found: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for line in scene.lines:
        start, stop = _owner(scene, line.points[0]), _owner(scene, line.points[-1])
        if not line.returning and start is not None and stop is not None:
            closed = not scene.frames[start].open and not scene.frames[stop].open
            found[start].append((stop, line.net, closed))
    return found


def _owner(scene: Scene, point: tuple[float, float]) -> int | None:
    """The innermost frame at whose border, or below whose heading, a point lies."""
    x, y = point[::-1] if scene.sideways else point
    best = None
    for number, frame in enumerate(upright(scene).frames):
        if not frame.x - _NEAR <= x <= frame.x + frame.width + _NEAR:
            continue
        behind = STYLE.stack if frame.item.repeat > 1 else 0.0
        borders = [frame.y, frame.y + frame.height + behind, frame.y + (_heading(scene) if frame.open else 0.0)]
        touches = any(abs(y - border) < _NEAR for border in borders)
        if touches and (best is None or frame.depth > scene.frames[best].depth):
            best = number
    return best


def _follow(ways: dict[int, list[tuple[int, int, bool]]], net: int, begin: int, end: int) -> set[Step] | None:
    """The lines from one box to another, all of one net; between closed boxes one line may stand for several."""
    came: dict[int, Step] = {}
    queue = [begin]
    while queue:
        at = queue.pop()
        for stop, carried, closed in ways.get(at, ()):
            if stop not in came and (carried == net or (closed and (at, stop) == (begin, end))):
                came[stop] = at, stop, carried
                queue.append(stop)
    if end not in came:
        return None
    path: set[Step] = set()
    while end != begin:
        path.add(came[end])
        end = came[end][0]
    return path

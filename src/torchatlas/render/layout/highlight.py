"""A chain of leaves, such as the critical path -> the boxes of a scene that it passes, and the lines between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchatlas.render.layout.outline import Outline
from torchatlas.render.layout.scene import Frame, Line, Scene
from torchatlas.render.layout.wiring import OUTPUTS

Link = tuple[int | None, int | None, int | None]  # net and ends of a line; any net if None
_NO_NET = -(1 << 62)


@dataclass(frozen=True, slots=True)
class _Stop:
    """A closed box on the way, the lines that lead to it from the one before, and the rounds it is reached in."""

    box: int
    rounds: tuple[tuple[int, int], ...]  # the open repeats around it, from the outermost on, and which round of each
    lines: frozenset[Line] = frozenset()


class HighlightedPath:
    """One chain on the page: its boxes, and the lines that lead to each of them from the one before.

    What the chain does in several rounds of a repeat is shown in one: where it comes to a box again in another round,
    what lies between is left out, and the way goes on from there. Where it steps along no line, it begins anew.
    """

    def __init__(self, outline: Outline, scene: Scene, chain: Iterable[int]) -> None:
        self.outline, self.scene = outline, scene
        self._number = {frame.item: number for number, frame in enumerate(scene.frames)}
        self._lines: dict[Link, list[Line]] = defaultdict(list)
        for line in scene.lines:
            for net in () if line.returning else (line.net, None):
                self._lines[net, *line.ends].append(line)
        stops: list[_Stop] = []
        before = -1
        for leaf in dict.fromkeys(chain):
            stop = self._stop(leaf)
            if stop is not None:
                self._go_on(stops, stop, before, leaf)
            before = leaf
        self.chain: tuple[Frame, ...] = tuple(scene.frames[stop.box] for stop in stops)
        self.boxes = frozenset(self.chain)
        self.lines = frozenset(line for stop in stops for line in stop.lines)

    def _go_on(self, stops: list[_Stop], stop: _Stop, before: int, leaf: int) -> None:
        """From the last stop to the next, which may be the same or an earlier one in another round."""
        if stops and stops[-1].box == stop.box:
            stops[-1] = replace(stops[-1], rounds=stop.rounds)
            return
        again = (
            index for index, earlier in enumerate(stops) if earlier.box == stop.box and earlier.rounds != stop.rounds
        )
        index = next(again, None)
        if index is not None:
            stops[index:] = [replace(stops[index], rounds=stop.rounds)]
            return
        lines = self._from(before, leaf, stops[-1], stop) if stops else frozenset()
        if not lines:
            stops.clear()
        stops.append(replace(stop, lines=lines))

    def _stop(self, leaf: int) -> _Stop | None:
        """The closed box that a leaf is in; none for one that was left out."""
        rounds: list[tuple[int, int]] = []
        for item, _, turn in self.outline.around(leaf):
            number = self._number[item]
            if not self.scene.frames[number].open:
                return _Stop(number, tuple(rounds))
            if item.repeat > 1:
                rounds.append((number, turn))
        return None

    def _from(self, source: int, target: int, come: _Stop, to: _Stop) -> frozenset[Line]:
        """The lines from box to box that one leaf's tensor takes to another."""
        tree, out, into = self.outline.tree, self._around(come.box), self._around(to.box)
        edges = slice(int(tree.first_edge[target]), int(tree.first_edge[target + 1]))
        places = np.flatnonzero(tree.source[edges] == source).tolist()
        repeat = _handing_on(come, to)
        if repeat is not None and places:
            out, into = out[: out.index(repeat)], into[: into.index(repeat)]
            leaving = [(self._net(target, places[0]), frame, None) for frame in out]
            entering = [(self._first_net(target, places[0]), None, frame) for frame in into]
            return self._lines_of([*leaving, *entering]) | self._back(out[-1], repeat)
        while out[-1] == into[-1]:
            out.pop()
            into.pop()
        if not places:  # it waits for no tensor, or lies in another lane
            is_kept = np.any((tree.kept_source == source) & (tree.kept_target == target))
            lines = self._lines_of([(None, out[-1], into[-1])] if is_kept else [])
            return frozenset(line for line in lines if line.net < 0)
        if len(out) == len(into) == 1:  # between closed boxes one line stands for all tensors
            return self._lines_of([(None, come.box, to.box)])
        net = self._net(target, places[0])
        leaving, entering = [(net, frame, None) for frame in out[:-1]], [(net, None, frame) for frame in into[:-1]]
        return self._lines_of([*leaving, (net, out[-1], into[-1]), *entering])

    def _net(self, target: int, index: int) -> int:
        """Which net brings a leaf one of its inputs."""
        edge = int(self.outline.tree.first_edge[target]) + index
        output = min(max(int(self.outline.tree.output[edge]), 0), OUTPUTS - 1)
        return self.outline.net(int(self.outline.tree.source[edge]) * OUTPUTS + output)

    def _first_net(self, target: int, index: int) -> int:
        """The net that brings this input to the first round of a repeat; others get it from the round before. A number
        that no line has if none brings it, as for a state that begins as a parameter."""
        *_, (_, first, _) = self.outline.around(target)
        ptr = self.outline.tree.first_edge
        alike = ptr[first + 1] - ptr[first] == ptr[target + 1] - ptr[target]
        return self._net(first, index) if alike else _NO_NET

    def _lines_of(self, links: Sequence[Link]) -> frozenset[Line]:
        return frozenset(line for link in links for line in self._lines.get(link, ()))

    def _back(self, box: int, repeat: int) -> frozenset[Line]:
        """The dashed lines from a box in a round of a repeat to the next round."""
        dashed = [line for line in self.scene.lines if line.returning and line.ends[1] == repeat]
        own = [line for line in dashed if line.ends[0] == box]
        pieces = [line for line in dashed if line.ends[0] == repeat]  # in order: it goes along those after its join
        joined = (
            index for index, piece in enumerate(pieces) if piece.points[0] in {joining.points[-1] for joining in own}
        )
        return frozenset((*own, *pieces[next(joined, len(pieces)) :]))

    def _around(self, number: int) -> list[int]:
        """A frame and those around it, outwards; the page itself is -1."""
        frames, item = [number], self.scene.frames[number].item.parent
        while item is not None:
            frames.append(self._number.get(item, -1))
            item = item.parent
        return frames


def _handing_on(come: _Stop, to: _Stop) -> int | None:
    """The outermost repeat of which two boxes are in different rounds."""
    for from_round, to_round in zip(come.rounds, to.rounds, strict=False):
        if from_round != to_round:
            return from_round[0] if from_round[0] == to_round[0] else None
    return None

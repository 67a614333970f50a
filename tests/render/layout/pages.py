"""Graph -> a picture, an outline, a scene: what most tests of the layout start from."""

from __future__ import annotations

from collections.abc import Iterator

from torchatlas.graph import Graph
from torchatlas.render.layout.box_words import BoxWords
from torchatlas.render.layout.outline import Item, Outline
from torchatlas.render.layout.scene import Frame, Scene
from torchatlas.render.layout.tree import build
from torchatlas.render.picture import Picture, draw


def outlined(graph: Graph, **options: int) -> Outline:
    return Outline(build(graph), **options)


def labelled(graph: Graph) -> tuple[Outline, BoxWords]:
    outline = outlined(graph)
    return outline, BoxWords(outline)


def every_item(outline: Outline, item: Item | None = None) -> Iterator[Item]:
    """All items, opened to the last one."""
    item = item or outline.root
    yield item
    if not item.is_leaf:
        for child in outline.children(item):
            yield from every_item(outline, child)


def drawn(
    graph: Graph, width: int = 1600, height: int = 1200, font_size: float = 9.0, direction: str = "down"
) -> Picture:
    return draw(graph, width=width, height=height, font_size=font_size, direction=direction)


def frame(scene: Scene, title: str) -> Frame:
    return next(found for found in scene.frames if found.title == title)

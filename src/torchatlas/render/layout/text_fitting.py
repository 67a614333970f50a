"""Names and figures -> one line of text that fits a box: names give way, whole parts at a time; no figure is cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from torchatlas.graph.names import short_name
from torchatlas.render.fonts import clipped, ending, shortened, text_width
from torchatlas.render.layout.style import STYLE

BETWEEN = " · "
ALL_NAMES = 3  # of up to so many names, all are written
MOST_NAMES = 40  # in a tooltip
# What the dispatcher adds to the name of an op to say which kernel it is.
_KERNEL = re.compile(
    r"^_+|_+$|^native_|^(?:mkldnn|cudnn|miopen|thnn)_|_for_cpu$|_default$|_legit(?:_no_training)?$"
    r"|_with_indices(?=_backward$|$)|(?<=_backward)_data$|_dense(?=_backward$)|_forward(?:_only)?$|_interface(?=_backward$|$)"
)
# Names of the dispatcher that no program uses -> what programs call the op.
_CALLED = {"local_scalar_dense": "item", "to_copy": "to", "index_put_impl": "index_put", "unsafe_index": "index"}
_ATTENTION = re.compile(r"scaled_dot_product_\w*?_?attention\w*")
_NUMBER_BEFORE = re.compile(r"(?<![^.])[0-9]+\.$")  # a module that is called by its number, at the end of a path
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)", re.DOTALL)


@lru_cache(maxsize=4096)  # a picture has few kinds of ops, and of each many
def plain(operation: str) -> str:
    """What people call an op.

    >>> plain("aten._scaled_dot_product_flash_attention.default"), plain("aten.native_layer_norm.default")
    ('attention', 'layer_norm')
    """
    name = short_name(operation).rpartition("::")[2]
    if _ATTENTION.search(name):
        return "attention" + (" backward" if name.endswith("backward") else "")
    while (shorter := _KERNEL.sub("", name)) != name and shorter:
        name = shorter
    return _CALLED.get(name, name)


def listed(names: list[str]) -> str:
    """Names as one text: those that count up, and long lists, by their ends; what all begin with is written once.

    >>> listed(["layer.0", "layer.1", "layer.2"]), listed(["q", "k", "v"]), listed(["stem", "body", "neck", "head"])
    ('layer.0 … 2', 'q, k, v', 'stem, body … head')
    >>> listed(["6.0", "6.1"])  # 6.0 … 1 would be a version
    '6.0 … 6.1'
    """
    if count_up(names):
        shared = shared_start(names, ".-_")
        number = _NUMBER_BEFORE.search(shared)
        return f"{names[0]} … {number[0] if number else ''}{names[-1][len(shared) :]}"
    shared = shared_start(names, ".-_")
    # Mixed_6b, 6c; but not layer_norm, scale
    if shared and not all(re.search("[0-9]", name[len(shared) :]) for name in names):
        shared = shared_start(names, ".")
    own = [name[len(shared) :] for name in names]
    return shared + (", ".join(own) if len(own) <= ALL_NAMES else f"{own[0]}, {own[1]} … {own[-1]}")


def shared_start(names: list[str], ends: str) -> str:
    """What all names begin with, up to the last of some characters."""
    least, most = min(names), max(names)  # what these two begin with, all do
    same = next((at for at, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least))
    return least[: max(least.rfind(end, 0, same) for end in ends) + 1]


def count_up(names: list[str]) -> bool:
    """Whether they differ in one number, by one from each to the next, up or down as in backward."""
    steps = set[int]()
    for number, following in itertools.pairwise(map(_NUMBERED.fullmatch, names)):  # the first two mostly tell
        if number is None or following is None or (number[1], number[3]) != (following[1], following[3]):
            return False
        steps.add(int(following[2]) - int(number[2]))
        if steps not in ({1}, {-1}):
            return False
    return bool(steps)


def joined(name: str, *figures: str, room: float = STYLE.widest_text) -> str:
    """A name and what is said beside it. The name gives way, then what is said first; no figure is cut."""
    said = [figure for figure in figures if figure]
    least = min(width(name + BETWEEN), STYLE.shortest_name + width(BETWEEN)) if name else 0.0
    while len(said) > 1 and least + width(BETWEEN.join(said)) > room:
        del said[0]
    beside = BETWEEN.join(said)
    if not name or not beside or width(beside) > room - least:
        return clipped(beside, STYLE.small_text, room) if beside else within(name, room)
    return within(name, room - width(BETWEEN + beside)) + BETWEEN + beside


def sized(name: str, wordings: Sequence[str], figure: str, room: float) -> str:
    """A name, the sizes of a layer in one of several wordings, and a figure.

    The figure gives way, then the name; empty if there is no room for sizes beside what a name keeps at least.

    >>> sizes = ("72→72, 3×3, depthwise", "72→72, 3×3, dw")
    >>> sized("conv", sizes, "792", 190), sized("conv", sizes, "792", 160), sized("a_longer_name", sizes, "792", 180)
    ('conv · 72→72, 3×3, depthwise · 792', 'conv · 72→72, 3×3, dw · 792', 'a_longer_name · 72→72, 3×3, dw')
    """
    for said in (*((wording, figure) for wording in wordings if figure), *((wording,) for wording in wordings)):
        text = BETWEEN.join(filter(None, (name, *said)))
        if width(text) <= room:
            return text
    beside = BETWEEN + wordings[-1]
    left = room - width(beside)
    return within(name, left) + beside if name and left >= min(width(name), STYLE.shortest_name) else ""


def within(name: str, room: float) -> str:
    """A name cut to fit: without its first parts, else without the last of several names, else without its middle."""
    if width(name) <= room:
        return name
    several = name.removesuffix(" …").split(", ")
    return (
        ending(name, STYLE.small_text, room)
        or some([*several[:-1], name], room)  # all of it does not fit: the last gives way in any case
        or _counting(name, room)
        or shortened(name, STYLE.small_text, room)
    )


def _counting(name: str, room: float) -> str:
    """Two names that count up, without what one repeats: layer1 … 6, 0 … 5.conv. The numbers stay. Empty for others."""
    first, _, last = name.partition(" … ")
    if (module := last.rpartition(".")[0]) and first.rpartition(".")[0].endswith(f".{module}"):
        return _counting_in(module, first, last, room)
    begin, end = _NUMBERED.fullmatch(first), _NUMBERED.fullmatch(last)
    if begin and end and begin[3] and (begin[1], begin[3]) == (end[1], end[3]):
        numbers = f"{begin[1]}{begin[2]} … {end[2]}"
        return fitting([numbers + end[3], numbers], room)
    stem = first.rstrip("0123456789")
    numbers = f"{first[len(stem) :]} … {last[len(stem) :]}"
    if not (last.startswith(stem) and last[len(stem) :].isdigit() and width(numbers) <= room):
        return ""
    return clipped(stem, STYLE.small_text, room - width(numbers)) + numbers


def _counting_in(module: str, first: str, last: str, room: float) -> str:
    """Two names of which both say what module they are in, without the modules around it: …6.0 … 6.1, else …0 … 1."""
    own = first[first.rpartition(".")[0].rfind(module) :]
    begin = ending(first, STYLE.small_text, room - width(f" … {last}"))
    if begin.endswith(f".{own}"):  # there is room for more of them
        return f"{begin} … {last}"
    numbers = [name.rpartition(".")[2] for name in (first, last)]
    return fitting([f"…{own} … {last}", "…" + " … ".join(numbers)], room)


def some(parts: Sequence[str], room: float, between: str = ", ", most: int = MOST_NAMES) -> str:
    """Join as many leading parts as fit the width; replace the rest by an ellipsis. Empty if not even one fits.

    >>> some(["input 2×144×1×1", "weight 576×144×1×1"], 140), some(["a", "b", "c"], 100, most=2), some(["a"], 1)
    ('input 2×144×1×1, …', 'a, b …', '')
    """
    between_width, used, shown = width(between), 0.0, 0
    dots = width(between + "…")
    for count, part in enumerate(parts[:most], 1):  # ends where the room does: there may be thousands
        used += width(part) + (between_width if count > 1 else 0.0)
        if used > room:
            break
        if count == len(parts):
            return between.join(parts)
        if used + dots <= room:
            shown = count
    if not shown:
        return ""
    return between.join(parts[:shown]) + (" …" if shown == most and between == ", " else f"{between}…")


def fitting(texts: Iterable[str], room: float) -> str:
    """The first of several texts that fits the width; empty if none does."""
    return next((text for text in texts if width(text) <= room), "")


def width(text: str) -> float:
    return text_width(text, STYLE.small_text)

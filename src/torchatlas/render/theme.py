"""Names of themes -> the colours of every picture, for light and dark pages.

The strokes start from the palette of Okabe and Ito and were then moved apart, by lightness where hue cannot do it,
until any two of the categories that meet in one picture differ by at least 11 in CIELAB to people with full colour
vision, deuteranopia and protanopia alike (tests/render/test_theme.py measures it). Grey has no room for fifteen steps:
there the members of a family still differ in lightness, and the names in the boxes say the rest.
Hue families on purpose: convolution, matmul and pooling are blue (heavy and light); attention and communication are
purple; recurrent and loss are red; norm and optimizer are green; view and movement are grey. Beside those fifteen,
random, module, custom and unknown are greys of their own, and gradient and accumulate, which only autograd graphs have,
borrow the reds and greens of what such graphs do not have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchatlas.graph.nouns import OperationType
from torchatlas.registry import Registry

THEMES: Registry[Theme] = Registry("theme")


@dataclass(frozen=True)
class Theme:
    """The colours of one kind of page."""

    name: str
    background: str
    ink: str  # names and titles
    soft: str  # what may be overlooked: sizes, units, footers
    line: str  # thin rules, grids and the outlines of modules
    edge: str  # the lines along which data flows
    accent: str  # the one thing to look at: a peak, a critical path
    terminal: tuple[str, str]  # fill and ink of inputs, outputs and the badges of repeats
    tints: tuple[str, ...]  # the grounds of modules, by how deep they are nested
    fills: dict[OperationType, tuple[str, str]]  # the fill and the stroke of an operation
    ramp: tuple[str, ...]  # from little to much, in steps that look even and differ in lightness

    def heat(self, fraction: float) -> tuple[str, str]:
        """The fill for a share of the largest value (0 to 1) and the ink that is readable on it; NaN is unknown.

        >>> LIGHT.heat(0), LIGHT.heat(1)
        (('#F9F8E1', '#000000'), ('#642043', '#FFFFFF'))
        """
        if math.isnan(fraction):
            return self.fills[OperationType.UNKNOWN][0], self.ink
        place = min(max(fraction, 0.0), 1.0) * (len(self.ramp) - 1)
        below = min(int(place), len(self.ramp) - 2)
        fill = mixed(self.ramp[below], self.ramp[below + 1], place - below)
        return fill, max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, fill))


def theme(name: str) -> Theme:
    """The theme of that name: light or dark.

    >>> theme("drak")
    Traceback (most recent call last):
        ...
    torchatlas.errors.UnknownNameError: unknown theme 'drak'; did you mean 'dark'? Known: dark, light
    """
    return THEMES[name]


def mixed(first: str, second: str, share: float) -> str:
    """The colour between two, `share` of the way to the second.

    >>> mixed("#000000", "#FFFFFF", 0.5)
    '#808080'
    """
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{int(255 * (a + (b - a) * share) + 0.5):02X}" for a, b in pairs)


def contrast(first: str, second: str) -> float:
    """How well one colour is read on the other, from 1 (not at all) to 21, as WCAG defines it.

    >>> contrast("#FFFFFF", "#000000")
    21.0
    """
    dark, bright = sorted((_luminance(first), _luminance(second)))
    return (bright + 0.05) / (dark + 0.05)


def _channels(colour: str) -> tuple[float, float, float]:
    return int(colour[1:3], 16) / 255, int(colour[3:5], 16) / 255, int(colour[5:7], 16) / 255


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _fills(strokes: dict[OperationType, str], ground: str, strength: float) -> dict[OperationType, tuple[str, str]]:
    """Each stroke with a fill of its own hue, so quiet that text is read on it."""
    return {kind: (mixed(ground, stroke, strength), stroke) for kind, stroke in strokes.items()}


def _ramp(colours: str) -> tuple[str, ...]:
    # Even steps of 11 in CIELAB along a curve in OKLCH: hue from yellow over orange to purple, lightness always falling
    # (on a dark page rising), so that the order is also seen in grey.
    return tuple(colours.split())


_LIGHT_STROKES = {
    OperationType.CONVOLUTION: "#0B71AE",
    OperationType.MATMUL: "#1A3F8B",
    OperationType.ATTENTION: "#B55491",
    OperationType.RECURRENT: "#D55C04",
    OperationType.NORM: "#009E74",
    OperationType.ACTIVATION: "#D09600",
    OperationType.POOLING: "#4CA9DF",
    OperationType.POINTWISE: "#A39634",
    OperationType.REDUCTION: "#8C5C2D",
    OperationType.VIEW: "#91969B",
    OperationType.MOVEMENT: "#56616F",
    OperationType.RANDOM: "#B0A8B9",
    OperationType.EMBEDDING: "#774EC3",
    OperationType.LOSS: "#8C1D2F",
    OperationType.COMMUNICATION: "#DB6FB9",
    OperationType.OPTIMIZER: "#125C4D",
    OperationType.GRADIENT: "#C8553D",
    OperationType.ACCUMULATE: "#2E7D5B",
    OperationType.MODULE: "#51606F",
    OperationType.CUSTOM: "#2B2B2B",
    OperationType.UNKNOWN: "#A5A5A5",
}

_DARK_STROKES = {
    OperationType.CONVOLUTION: "#57AEE9",
    OperationType.MATMUL: "#3D6FDF",
    OperationType.ATTENTION: "#E48DC8",
    OperationType.RECURRENT: "#F07B3B",
    OperationType.NORM: "#38CD9B",
    OperationType.ACTIVATION: "#ECAE3A",
    OperationType.POOLING: "#97D5FE",
    OperationType.POINTWISE: "#ECE14E",
    OperationType.REDUCTION: "#BE8D5B",
    OperationType.VIEW: "#A8AAAC",
    OperationType.MOVEMENT: "#6B7A8B",
    OperationType.RANDOM: "#8A8094",
    OperationType.EMBEDDING: "#A084F2",
    OperationType.LOSS: "#CF4453",
    OperationType.COMMUNICATION: "#F6BEDE",
    OperationType.OPTIMIZER: "#1A927B",
    OperationType.GRADIENT: "#E8836B",
    OperationType.ACCUMULATE: "#63C39A",
    OperationType.MODULE: "#9AA8B6",
    OperationType.CUSTOM: "#F2F2F2",
    OperationType.UNKNOWN: "#7D7D7D",
}

LIGHT = THEMES.add("light")(
    Theme(
        name="light",
        background="#FFFFFF",
        ink="#1B2430",
        soft="#4F5B69",
        line="#D5DCE3",
        edge="#5B6775",
        accent="#C1121F",
        terminal=("#2F3B4A", "#FFFFFF"),
        tints=("#FFFFFF", "#F4F7FA", "#E9EFF5", "#DEE7EF", "#D3DFE9", "#C8D7E3"),
        fills=_fills(_LIGHT_STROKES, "#FFFFFF", 0.14),
        ramp=_ramp(
            "#F9F8E1 #F8F1C6 #F8E6A9 #F8D98C #F8C971 #F7B658 #F4A141 #ED8A32 "
            "#E3732E #D65F32 #C94F38 #B9413D #A73542 #932B45 #7D2445 #642043"
        ),
    )
)

DARK = THEMES.add("dark")(
    Theme(
        name="dark",
        background="#14181D",
        ink="#EDF1F5",
        soft="#B3BDC8",
        line="#3A4550",
        edge="#93A0AE",
        accent="#FF6B5E",
        terminal=("#D8E0E8", "#14181D"),
        tints=("#14181D", "#1A2027", "#202830", "#26303A", "#2C3843", "#32404C"),
        fills=_fills(_DARK_STROKES, "#14181D", 0.2),
        ramp=_ramp(
            "#322843 #472C54 #633060 #803464 #983A62 #AC425E #BD4B57 #CC5750 "
            "#D86549 #E37643 #EB8A41 #F1A149 #F4B75A #F5CC72 #F5E08D #F7F3AC"
        ),
    )
)

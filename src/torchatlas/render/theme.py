"""Names of themes -> the colours of every picture, for light and dark pages.

Each type of op has a fill and a stroke. The heavier the op, the more its fill stands out from the page: convolution,
matmul and attention most, views and pointwise ops least. So boxes keep that order in grey, where strokes of different
lightness distinguish types of equal weight. Strokes that meet in one picture differ by at least 11 in CIELAB to people
with full colour vision, deuteranopia and protanopia alike, any two by 8; fill and stroke of common types together
differ by 4.7 in lightness alone (tests/render/test_theme.py measures all of it).
The hues start from the palette of Okabe and Ito and stay in families: convolution, matmul and pooling are blue;
attention and communication are pink, embedding is purple; recurrent and loss are red; norm and optimizer are green;
activation, pointwise and reduction go from yellow to brown; view, movement, random and what is unknown are greys.
gradient and accumulate, which only autograd graphs have, borrow the red and the green of what such graphs do not have.
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
    memory: dict[str, str]  # what bytes are for -> the colour of their area, from the bottom of a stack to its top
    ramp: tuple[str, ...]  # from little to much, in steps that look even and differ in lightness

    def stroke(self, kind: OperationType) -> str:
        """The colour of a type of op, for lines and dots."""
        return self.fills[kind][1]

    def heat(self, fraction: float) -> tuple[str, str]:
        """The fill for a share of the largest value (0 to 1) and the ink that is readable on it; NaN is unknown.

        >>> LIGHT.heat(0), LIGHT.heat(1)
        (('#F9F8E1', '#000000'), ('#642043', '#FFFFFF'))
        """
        if math.isnan(fraction):
            return self.fills[OperationType.UNKNOWN][0], self.ink
        position = min(max(fraction, 0.0), 1.0) * (len(self.ramp) - 1)
        below = min(int(position), len(self.ramp) - 2)
        fill = mixed(self.ramp[below], self.ramp[below + 1], position - below)
        return fill, max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, fill))


def theme(name: str) -> Theme:
    """The theme with this name: light or dark.

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
    """The contrast of two colours as WCAG defines it, from 1 (none) to 21.

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


def _ramp(colours: str) -> tuple[str, ...]:
    # Even steps of 11 in CIELAB along a curve in OKLCH: hue from yellow over orange to purple, lightness always falling
    # (on a dark page rising), so that the order is also seen in grey.
    return tuple(colours.split())


_LIGHT_FILLS = {
    OperationType.CONVOLUTION: ("#A4CDEE", "#598FC1"),
    OperationType.MATMUL: ("#B2C2EA", "#3D57A7"),
    OperationType.ATTENTION: ("#EED0E7", "#9B3984"),
    OperationType.RECURRENT: ("#F7C3A5", "#952400"),
    OperationType.NORM: ("#CFECE3", "#009265"),
    OperationType.ACTIVATION: ("#F8E6BC", "#D79B0E"),
    OperationType.POOLING: ("#B8E0F3", "#1DA6E7"),
    OperationType.POINTWISE: ("#F8F6ED", "#877E1C"),
    OperationType.REDUCTION: ("#F6E5D4", "#7F5329"),
    OperationType.VIEW: ("#F1F7FC", "#4B5661"),
    OperationType.MOVEMENT: ("#E7EDF4", "#2E3A46"),
    OperationType.RANDOM: ("#F8F4FD", "#A9A1B4"),
    OperationType.EMBEDDING: ("#E2D9F5", "#4C2697"),
    OperationType.LOSS: ("#EDB6C4", "#75021E"),
    OperationType.COMMUNICATION: ("#F2CEE4", "#C2569D"),
    OperationType.OPTIMIZER: ("#9DD8C9", "#367766"),
    OperationType.GRADIENT: ("#FCD7D1", "#C34E3F"),
    OperationType.ACCUMULATE: ("#CCEADD", "#56A180"),
    OperationType.MODULE: ("#E6F0F9", "#626F7A"),
    OperationType.CUSTOM: ("#D4D4D4", "#333636"),
    OperationType.UNKNOWN: ("#EFEEEE", "#9F9F9F"),
}

_DARK_FILLS = {
    OperationType.CONVOLUTION: ("#004768", "#6ABFFC"),
    OperationType.MATMUL: ("#3F4E81", "#5583FB"),
    OperationType.ATTENTION: ("#703E67", "#F098D6"),
    OperationType.RECURRENT: ("#583523", "#F07B3B"),
    OperationType.NORM: ("#133E31", "#5BEAB5"),
    OperationType.ACTIVATION: ("#282115", "#F1B03B"),
    OperationType.POOLING: ("#172E3D", "#98D3FB"),
    OperationType.POINTWISE: ("#242317", "#F6EA58"),
    OperationType.REDUCTION: ("#483118", "#D3A06D"),
    OperationType.VIEW: ("#292B2C", "#A2A3A4"),
    OperationType.MOVEMENT: ("#2C3037", "#607080"),
    OperationType.RANDOM: ("#232127", "#8C8396"),
    OperationType.EMBEDDING: ("#483E68", "#9276DC"),
    OperationType.LOSS: ("#5E2C33", "#C7404E"),
    OperationType.COMMUNICATION: ("#593551", "#FECAE9"),
    OperationType.OPTIMIZER: ("#073D35", "#249881"),
    OperationType.GRADIENT: ("#462923", "#D5755F"),
    OperationType.ACCUMULATE: ("#15362B", "#61C299"),
    OperationType.MODULE: ("#23292F", "#AFB7C0"),
    OperationType.CUSTOM: ("#454544", "#CDCBCB"),
    OperationType.UNKNOWN: ("#252626", "#6C6F6F"),
}

# Memory that stays lies below memory that comes and goes. The six largest kinds are at least 7 apart in lightness, for
# any two of them may touch; the others are thin, and lie between those.
_LIGHT_MEMORY = {
    "parameters": "#2A709F",
    "buffers": "#A6D7F0",
    "constants": "#AEB8C4",
    "inputs": "#4A535D",
    "optimizer_state": "#69BCA1",
    "gradients": "#C76647",
    "saved_activations": "#F9DA88",
    "activations": "#F4BA5E",
    "temporaries": "#CA7DB1",
    "unattributed": "#3D4043",
}

_DARK_MEMORY = {
    "parameters": "#1C5E88",
    "buffers": "#8AB6CC",
    "constants": "#939CA6",
    "inputs": "#3D464E",
    "optimizer_state": "#549F87",
    "gradients": "#A95337",
    "saved_activations": "#D3B86F",
    "activations": "#CF9C4A",
    "temporaries": "#AD6997",
    "unattributed": "#C8CCCE",
}

LIGHT = THEMES.add("light")(
    Theme(
        name="light",
        background="#FFFFFF",
        ink="#1B2430",
        soft="#46515E",
        line="#D5DCE3",
        edge="#5B6775",
        accent="#C1121F",
        terminal=("#2F3B4A", "#FFFFFF"),
        tints=("#FFFFFF", "#F4F7FA", "#E9EFF5", "#DEE7EF", "#D3DFE9", "#C8D7E3"),
        fills=_LIGHT_FILLS,
        memory=_LIGHT_MEMORY,
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
        soft="#BAC4CE",
        line="#3A4550",
        edge="#93A0AE",
        accent="#FF6B5E",
        terminal=("#D8E0E8", "#14181D"),
        tints=("#14181D", "#1A2027", "#202830", "#26303A", "#2C3843", "#32404C"),
        fills=_DARK_FILLS,
        memory=_DARK_MEMORY,
        ramp=_ramp(
            "#322843 #472C54 #633060 #803464 #983A62 #AC425E #BD4B57 #CC5750 "
            "#D86549 #E37643 #EB8A41 #F1A149 #F4B75A #F5CC72 #F5E08D #F7F3AC"
        ),
    )
)

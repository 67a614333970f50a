"""Numbers -> text for people, bytes also back: bytes, counts, FLOPs and times. The only place that rounds.

Three significant digits; whole numbers below the first step are shown exactly. None and NaN (a missing entry of a
float column) are "unknown", never zero.
"""

from __future__ import annotations

import math
import re

from torchatlas.errors import InvalidInputError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")
_COUNT = ("", "K", "M", "B", "T")
_TIME = ("ns", "µs", "ms", "s")


def format_bytes(n: float | None) -> str:
    """Bytes in binary units (1 KiB = 1024 B), as allocators and operating systems count memory.

    >>> format_bytes(46_827_520)
    '44.7 MiB'
    >>> format_bytes(0), format_bytes(None)
    ('0 B', 'unknown')
    """
    return _scaled(n, 1024, _BINARY)


def parse_bytes(text: str | float) -> int:
    """A number of bytes as people write it: K, M, G are decimal, KiB, MiB, GiB binary; "B" may follow the former.

    >>> parse_bytes("1.5 GiB"), parse_bytes("80GB"), parse_bytes("512"), parse_bytes(512)
    (1610612736, 80000000000, 512, 512)
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]+)?)\s*(?:([kmgtpe])(i?))?b?\s*", str(text), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes, such as 1.5GiB or 80GB")
    number, prefix, binary = match.groups()
    power = "kmgtpe".index(prefix.lower()) + 1 if prefix else 0
    size = float(number) * float(1024 if binary else 1000) ** power
    if math.isinf(size):
        raise ValueError(f"{text!r} is more bytes than can be counted")
    return round(size)


def byte_limit(limit: str | float, argument: str = "limit", least: int = 1) -> int:
    """An argument of a public function in bytes; an InvalidInputError if it is no number of bytes from `least` on.

    >>> byte_limit("24GB"), byte_limit(8 * 2**30)
    (24000000000, 8589934592)
    """
    try:
        size = parse_bytes(limit)
    except ValueError:
        size = -1
    if size < least:
        above = " above zero" if least else ""
        raise InvalidInputError(f"{argument}={limit!r} is no number of bytes{above}, such as 1.5GiB or 80GB.")
    return size


def byte_rate(bandwidth: str | float) -> float:
    """The argument `bandwidth` of a public function in bytes per second.

    >>> byte_rate("25GB/s"), byte_rate(1e9)
    (25000000000.0, 1000000000.0)
    """
    if isinstance(bandwidth, (int, float)) and bandwidth > 0:
        return float(bandwidth)
    try:
        return float(byte_limit(str(bandwidth).removesuffix("/s")))
    except InvalidInputError:
        raise InvalidInputError(
            f"bandwidth={bandwidth!r} is no number of bytes per second, such as 25GB/s or 25e9."
        ) from None


def format_count(n: float | None) -> str:
    """How many: parameters, nodes, elements. B is 10**9, as in "a 7B model".

    >>> format_count(11_689_512), format_count(7_000_000_000), format_count(62)
    ('11.7M', '7.00B', '62')
    """
    return _scaled(n, 1000, _COUNT).replace(" ", "")


def format_flops(n: float | None) -> str:
    """Floating point operations (a multiply-add is two) in decimal units. An amount of work, not a rate.

    >>> format_flops(3_628_146_688), format_flops(512)
    ('3.63 GFLOPs', '512 FLOPs')
    """
    return _scaled(n, 1000, tuple(prefix + "FLOPs" for prefix in _DECIMAL))


def format_seconds(s: float | None) -> str:
    """A duration given in seconds.

    >>> format_seconds(0.0123), format_seconds(75), format_seconds(7500)
    ('12.3 ms', '1 min 15 s', '2 h 05 min')
    """
    return format_ns(None if s is None else s * 1e9)


def format_ns(ns: float | None) -> str:
    """A duration given in nanoseconds.

    >>> format_ns(789), format_ns(45_600), format_ns(1_500_000_000)
    ('789 ns', '45.6 µs', '1.50 s')
    """
    if ns is None or not 59.95e9 <= abs(ns) < math.inf:  # from 59.95 s on, three digits would say "60.0 s"
        return _scaled(ns, 1000, _TIME)
    sign, seconds = "-" if ns < 0 else "", abs(ns) / 1e9
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{sign}{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{sign}{hours:,} h {minutes:02} min"


def _scaled(n: float | None, step: int, units: tuple[str, ...]) -> str:
    if n is None or math.isnan(n):
        return "unknown"
    if math.isinf(n):
        return "infinite" if n > 0 else "-infinite"
    sign, size = "-" if n < 0 else "", abs(n)
    if size < step and size == int(size):
        return f"{sign}{int(size)} {units[0]}".rstrip()
    for unit in units[:-1]:
        text = _three_digits(size)
        if float(text) < step:  # the rounded text decides, so that 999,999 is 1.00M and not 1000K
            return f"{sign}{text} {unit}".rstrip()
        size /= step
    text = _three_digits(size) if size < 1000 else f"{size:,.0f}"
    return f"{sign}{text} {units[-1]}"


def _three_digits(size: float) -> str:
    if size < 0.9995:
        return f"{size:.3g}"
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{size:.{decimals}f}"

"""Numbers as text: the edges of every unit, and what is unknown. Doctests hold the ordinary cases."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchatlas.units import format_bytes, format_count, format_flops, format_ns, format_seconds, parse_bytes

ALL = [format_bytes, format_count, format_flops, format_ns, format_seconds]


@pytest.mark.parametrize("to_text", ALL)
def test_unknown_is_never_zero(to_text: Callable[[float | None], str]) -> None:
    assert to_text(None) == "unknown"
    assert to_text(float("nan")) == "unknown"
    assert to_text(0) == to_text(-0.0) != "unknown"
    assert to_text(float("inf")) == "infinite"
    assert to_text(float("-inf")) == "-infinite"


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (-1536, "-1.50 KiB"),
        (12.5, "12.5 B"),
        (1000 * 1024, "1000 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (102_349, "100 KiB"),
        (1024**4, "1.00 TiB"),
        (5 * 1024**6, "5.00 EiB"),
        (12_345 * 1024**6, "12,345 EiB"),
    ],
)
def test_bytes(n: float, text: str) -> None:
    assert format_bytes(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00K"),
        (-25_557_032, "-25.6M"),
        (9_996, "10.0K"),
        (99_960, "100K"),
        (999_499, "999K"),
        (999_999, "1.00M"),
        (0.5, "0.5"),
        (405_853_388_800, "406B"),
        (10**15, "1,000T"),
    ],
)
def test_count(n: float, text: str) -> None:
    assert format_count(n) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 FLOPs"),
        (1, "1 FLOPs"),
        (-2_000, "-2.00 KFLOPs"),
        (1_999_600_000, "2.00 GFLOPs"),
        (38 * 10**24, "38.0 YFLOPs"),
        (10**30, "1,000,000 YFLOPs"),
    ],
)
def test_flops(n: float, text: str) -> None:
    assert format_flops(n) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (0.25, "0.25 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (999_999, "1.00 ms"),
        (-2_500_000, "-2.50 ms"),
        (59_940_000_000, "59.9 s"),
        (59_950_000_000, "1 min 00 s"),
        (-90_000_000_000, "-1 min 30 s"),
        (3_599_400_000_000, "59 min 59 s"),
        (3_599_500_000_000, "1 h 00 min"),
        (10**9 * 3600 * 2000, "2,000 h 00 min"),
    ],
)
def test_ns(ns: float, text: str) -> None:
    assert format_ns(ns) == text


def test_seconds_agree_with_ns() -> None:
    for seconds in (0, 1e-9, 0.001, 1.5, 60, 86_400, -3):
        assert format_seconds(seconds) == format_ns(seconds * 1e9)


@given(st.integers(min_value=1, max_value=10**27))
def test_text_is_within_half_a_digit_of_the_number(n: int) -> None:
    digits, prefix = re.fullmatch(r"([\d.,]+) ([KMGTPEZY]?)FLOPs", format_flops(n)).groups()  # type: ignore[union-attr]
    back = float(digits.replace(",", "")) * 1000.0 ** " KMGTPEZY".index(prefix or " ")
    assert back == pytest.approx(n, rel=0.00501)
    assert float(digits.replace(",", "")) < 1000 or prefix == "Y"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("0", 0), ("512 B", 512), ("1k", 1000), ("1Ki", 1024), ("2 MiB", 2**21), ("1.5GB", 1_500_000_000), ("1e3", 1000)],
)
def test_bytes_as_people_write_them(text: str, bytes_: int) -> None:
    assert parse_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GiBB", "nan", "inf", "1,5 GB", "0x10", "many"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)

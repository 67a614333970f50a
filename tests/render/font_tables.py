"""A font file (OTF or WOFF), read as the tests need it: its characters with their widths."""

from __future__ import annotations

import struct
import zlib


def widths(data: bytes) -> dict[str, int]:
    """Every character of a font with its advance, from its tables `cmap`, `hhea` and `hmtx`."""
    tables = _tables(data)
    (metrics,) = struct.unpack_from(">H", tables["hhea"], 34)
    # One (advance, left bearing) pair per glyph; glyphs after the last pair have its advance.
    advances = struct.unpack_from(">" + "Hh" * metrics, tables["hmtx"])[::2]
    return {one: advances[min(glyph, metrics - 1)] for one, glyph in _glyphs(tables["cmap"]).items()}


def units_per_em(data: bytes) -> int:
    (em,) = struct.unpack_from(">H", _tables(data)["head"], 18)
    return int(em)


def _tables(data: bytes) -> dict[str, bytes]:
    found = {}
    if data[:4] == b"wOFF":
        (count,) = struct.unpack_from(">H", data, 12)
        for index in range(count):
            tag, start, length, whole = struct.unpack_from(">4sLLL", data, 44 + 20 * index)
            table = data[start : start + length]
            found[tag.decode("ascii")] = table if length == whole else zlib.decompress(table)
        return found
    (count,) = struct.unpack_from(">H", data, 4)
    for index in range(count):
        tag, _, start, length = struct.unpack_from(">4sLLL", data, 12 + 16 * index)
        found[tag.decode("ascii")] = data[start : start + length]
    return found


def _glyphs(cmap: bytes) -> dict[str, int]:
    """Character -> glyph, from the first subtable of a `cmap`, which is of format 4: runs of characters."""
    (start,) = struct.unpack_from(">L", cmap, 8)
    version, _, _, twice = struct.unpack_from(">4H", cmap, start)
    assert version == 4, "a font that pyftsubset wrote as fonts/README.md says has a cmap of format 4"
    count = twice // 2
    last = struct.unpack_from(f">{count}H", cmap, start + 14)
    first = struct.unpack_from(f">{count}H", cmap, start + 16 + twice)
    delta = struct.unpack_from(f">{count}H", cmap, start + 16 + 2 * twice)
    ranges = start + 16 + 3 * twice
    glyphs: dict[str, int] = {}
    for run in range(count):
        (shift,) = struct.unpack_from(">H", cmap, ranges + 2 * run)
        for code in range(first[run], last[run] + 1):
            glyph = code
            if shift:  # an index into the words that follow, counted from the place of `shift` itself
                (glyph,) = struct.unpack_from(">H", cmap, ranges + 2 * run + shift + 2 * (code - first[run]))
            if glyph and code != 0xFFFF:  # the last run is a mark: 0xFFFF and nothing else
                glyphs[chr(code)] = (glyph + delta[run]) % 65536
    return glyphs

"""What is drawn on a page, and the characters it uses -> the file: a PDF with its fonts embedded.

A PDF is a list of numbered objects that name each other ("7 0 R"), and a table of where in the file each begins.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

from torchatlas.render.fonts import widths_by_piece
from torchatlas.render.fonts.outlines import outlines

_EM = 2816  # units of the font's widths
# Ascent, descent and height of capitals of Inter, in thousandths of an em. Viewers ask for them, e.g. to mark a text.
_HEIGHTS = "/Ascent 969 /Descent -242 /CapHeight 727 /ItalicAngle 0"
_STEMS = {False: 90, True: 140}  # how thick upright strokes are


def resource(piece: str, bold: bool) -> str:
    """What a page calls a piece of the font."""
    return piece + ("Bold" if bold else "")


def pdf_file(
    operators: bytes,
    page: tuple[float, float],
    used: Mapping[tuple[str, bool], Mapping[int, str]],
    opacities: Sequence[str],
) -> bytes:
    """A file of one page, so many points wide and high.

    `used` says, for each piece of the font and weight, which glyphs are drawn, and their characters. Opacities are
    called O0, O1 and so on.
    """
    objects = _Objects()
    fonts = [f"/{resource(*key)} {_font(objects, *key, used[key])}" for key in sorted(used)]
    states = [f"/O{at} <</ca {value} /CA {value}>>" for at, value in enumerate(opacities)]
    drawn = objects.add_stream("", operators)
    resources = f"<</Font <<{' '.join(fonts)}>> /ExtGState <<{' '.join(states)}>>>>"
    pages = f"{objects.next + 1} 0 R"
    box = f"[0 0 {page[0]:.4f} {page[1]:.4f}]"
    only = objects.add(f"<</Type /Page /Parent {pages} /MediaBox {box} /Resources {resources} /Contents {drawn}>>")
    objects.add(f"<</Type /Pages /Kids [{only}] /Count 1>>")
    catalogue = objects.add(f"<</Type /Catalog /Pages {pages}>>")
    return objects.file(catalogue, objects.add("<</Producer (torchatlas)>>"))


class _Objects:
    """Numbered from 1, in the order they are added."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []

    @property
    def next(self) -> int:
        return len(self._bodies) + 1

    def add(self, body: str) -> str:
        """Returns how others name it."""
        self._bodies.append(body.encode())
        return f"{len(self._bodies)} 0 R"

    def add_stream(self, keys: str, data: bytes) -> str:
        """Data with what is said of it, compressed."""
        data = zlib.compress(data, 9)
        name = self.add(f"<<{keys} /Filter /FlateDecode /Length {len(data)}>>")
        self._bodies[-1] += b"\nstream\n" + data + b"\nendstream"
        return name

    def file(self, catalogue: str, about: str) -> bytes:
        data, starts = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"), []  # bytes above 127: it is no text
        for at, body in enumerate(self._bodies, 1):
            starts.append(len(data))
            data += b"%d 0 obj\n%s\nendobj\n" % (at, body)
        table, begin = "".join(f"{start:010d} 00000 n \n" for start in starts), len(data)
        data += f"xref\n0 {self.next}\n0000000000 65535 f \n{table}".encode()
        data += f"trailer\n<</Size {self.next} /Root {catalogue} /Info {about}>>\n".encode()
        data += f"startxref\n{begin}\n%%EOF\n".encode()
        return bytes(data)


def _font(objects: _Objects, piece: str, bold: bool, used: Mapping[int, str]) -> str:
    """A piece of the font with its outlines, the widths of the characters that are used, and which they are."""
    font, advances = outlines(piece, bold), widths_by_piece()[piece]
    box = " ".join(map(str, font.bounds))
    file = objects.add_stream("/Subtype /CIDFontType0C", font.cff)
    descriptor = objects.add(
        f"<</Type /FontDescriptor /FontName /{font.name} /Flags 4 /FontBBox [{box}] {_HEIGHTS} /StemV {_STEMS[bold]} "
        f"/FontFile3 {file}>>"
    )
    widths = " ".join(
        f"{glyph} [{1000 * advances[character][bold] / _EM:.3f}]" for glyph, character in sorted(used.items())
    )
    descendant = objects.add(
        f"<</Type /Font /Subtype /CIDFontType0 /BaseFont /{font.name} /FontDescriptor {descriptor} /W [{widths}] "
        "/CIDSystemInfo <</Registry (Adobe) /Ordering (Identity) /Supplement 0>>>>"
    )
    unicode = objects.add_stream("", _unicode(sorted(used.items())))
    return objects.add(
        f"<</Type /Font /Subtype /Type0 /BaseFont /{font.name} /Encoding /Identity-H /DescendantFonts [{descendant}] "
        f"/ToUnicode {unicode}>>"
    )


def _unicode(glyphs: Iterable[tuple[int, str]]) -> bytes:
    """The table that says which character a glyph stands for; a block of it holds a hundred at most."""
    lines = [f"<{glyph:04X}> <{character.encode('utf-16-be').hex().upper()}>" for glyph, character in glyphs]
    blocks = [lines[at : at + 100] for at in range(0, len(lines), 100)]
    parts = [f"{len(block)} beginbfchar\n" + "\n".join(block) + "\nendbfchar" for block in blocks]
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n"
        "/CIDSystemInfo <</Registry (Adobe) /Ordering (UCS) /Supplement 0>> def\n"
        "/CMapName /Adobe-Identity-UCS def /CMapType 2 def\n"
        "1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n" + "\n".join(parts) + "\n"
        "endcmap CMapName currentdict /CMap defineresource pop end end"
    ).encode()

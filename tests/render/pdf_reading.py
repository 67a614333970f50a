"""A PDF, read back as a viewer would: its objects by number, its texts with their places, its fonts."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """What a reader would copy, and where it stands: in the units of the SVG."""

    text: str
    x: float
    y: float
    width: float  # by the widths that the file states


class Pdf:
    """Objects, found by the table at the end of the file as a viewer finds them."""

    def __init__(self, data: bytes) -> None:
        begin = int(re.findall(rb"startxref\n(\d+)\n%%EOF", data)[-1])
        count = int(re.match(rb"xref\n0 (\d+)\n", data[begin:])[1])  # type: ignore[index]
        starts = [int(row) for row in re.findall(rb"(\d{10}) 00000 n \n", data[begin:])]
        assert len(starts) == count - 1
        self.objects: dict[int, bytes] = {}
        for number, start in enumerate(starts, 1):
            assert data[start:].startswith(b"%d 0 obj\n" % number)
            self.objects[number] = data[start : data.index(b"\nendobj\n", start)].split(b"\n", 1)[1]
        self.page = next(body.decode() for body in self.objects.values() if b"/Type /Page " in body)
        self.size = [float(side) for side in re.search(r"/MediaBox \[0 0 (\S+) (\S+)\]", self.page).groups()]  # type: ignore[union-attr]
        self.content = self.stream(self.ref(self.page, "Contents")).decode()

    def ref(self, text: str, key: str) -> int:
        return int(re.search(rf"/{key} \[?(\d+) 0 R", text)[1])  # type: ignore[index]

    def stream(self, number: int) -> bytes:
        head, _, rest = self.objects[number].partition(b"\nstream\n")
        length = int(re.search(rb"/Length (\d+)", head)[1])  # type: ignore[index]
        assert rest[length:] == b"\nendstream"
        return zlib.decompress(rest[:length])

    def fonts(self) -> dict[str, Font]:
        found = re.search(r"/Font <<(.*?)>>", self.page)
        return {name: Font(self, int(at)) for name, at in re.findall(r"/(\w+) (\d+) 0 R", found[1] if found else "")}

    def texts(self) -> list[Text]:
        """Texts in the order they are drawn; what a text is to be copied as wins over what is drawn."""
        fonts, found = self.fonts(), []
        for actual, block in re.findall(r"(?:/ActualText <(\w+)>>> BDC\n)?BT\n(.*?)\nET", self.content, re.DOTALL):
            x, y = re.search(r"1 0 0 -1 (\S+) (\S+) Tm", block).groups()  # type: ignore[union-attr]
            squeezed = re.search(r"(\S+) Tz", block)
            text, width = "", 0.0
            for name, size, codes in re.findall(r"/(\w+) (\S+) Tf <(\w+)> Tj", block):
                glyphs = [int(codes[at : at + 4], 16) for at in range(0, len(codes), 4)]
                text += "".join(fonts[name].unicode[glyph] for glyph in glyphs)
                width += sum(fonts[name].widths[glyph] for glyph in glyphs) * float(size) / 1000
            text = bytes.fromhex(actual).decode("utf-16") if actual else text
            found.append(Text(text, float(x), float(y), width * (float(squeezed[1]) / 100 if squeezed else 1)))
        return found


class Font:
    """A composite font: Unicode and widths (thousandths of an em) by glyph, and the file it embeds."""

    def __init__(self, pdf: Pdf, number: int) -> None:
        font = pdf.objects[number].decode()
        descendant = pdf.objects[pdf.ref(font, "DescendantFonts")].decode()
        descriptor = pdf.objects[pdf.ref(descendant, "FontDescriptor")].decode()
        self.name = re.search(r"/BaseFont /(\S+)", font)[1]  # type: ignore[index]
        self.cff = pdf.stream(pdf.ref(descriptor, "FontFile3"))
        table = pdf.stream(pdf.ref(font, "ToUnicode")).decode()
        pairs = re.findall(r"^<(\w{4})> <(\w+)>$", table, re.MULTILINE)
        self.unicode = {int(code, 16): bytes.fromhex(text).decode("utf-16-be") for code, text in pairs}
        widths = re.search(r"/W \[(.*?)\] /CID", descendant)[1]  # type: ignore[index]
        self.widths = {int(glyph): float(width) for glyph, width in re.findall(r"(\d+) \[(\S+)\]", widths)}

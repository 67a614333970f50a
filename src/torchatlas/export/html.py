"""A page of the viewer (`.html`) -> the graphs in it. The page is searched as text: nothing in it runs.

A page holds each graph as the bytes of an `.atlas` file, gzipped, in base64, in an element of its own. The element says
how many bytes it unpacks to, and no more are unpacked.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import zlib
from pathlib import Path

from torchatlas.errors import FileFormatError
from torchatlas.escapes import quoted
from torchatlas.export.archive import graph_of_bytes
from torchatlas.files import open_to_read
from torchatlas.graph import Graph
from torchatlas.graph.formats import READERS

_GENERATOR = b'<meta name="generator" content="torchatlas">'  # see render/viewer/html_page.py
_END = b"</html>"
_OPENING = b'<script type="application/x-atlas"'
# For the reader's protection, see docs/limits.md. Columns of ours shrink to a seventh; a bomb to a thousandth.
MOST_EXPANSION = 100
MOST_DOCUMENTS = 100
_HEAD_BYTES = 100_000  # the generator stands before style and script
_TAIL_BYTES = 4096  # a mail gateway may add lines
_DOCUMENT = re.compile(
    rb'<script type="application/x-atlas" id="document-\d{1,3}" data-name="([^"]{0,100000})" data-bytes="(\d{1,15})">'
    rb"([A-Za-z0-9+/=]*)</script>"
)


@READERS.add(".html", ".htm")
def load_page(path: Path) -> Graph:
    """The graph of a page that holds one."""
    graphs = load_pages(path)
    if len(graphs) > 1:
        names = ", ".join(quoted(name) for name, _ in graphs[:4])
        raise FileFormatError(
            f"{path}: it compares {len(graphs)} graphs ({names}), and a Graph is one. Open it in a browser, or save "
            "each graph in a file of its own."
        )
    return graphs[0][1]


def load_pages(path: Path) -> list[tuple[str, Graph]]:
    """Every graph of a page, with its name."""
    with open_to_read(path) as file:
        data = file.read()
    elements = list(_DOCUMENT.finditer(data))
    if (
        len(elements) < max(data.count(_OPENING), 1)
        and _GENERATOR in data[:_HEAD_BYTES]
        and _END not in data[-_TAIL_BYTES:]
    ):
        raise FileFormatError(
            f"{path}: cut off after {len(data):,} bytes: it begins as a page of torchatlas, and its end is missing. "
            "Copy it again, or save it again."
        )
    if not elements:
        raise FileFormatError(f"{path}: not a page that torchatlas wrote, or an empty viewer: it holds no graph.")
    if len(elements) > MOST_DOCUMENTS:
        raise FileFormatError(f"{path}: it holds {len(elements)} graphs, expected at most {MOST_DOCUMENTS}.")
    return [
        (html.unescape(one[1].decode("utf-8", "replace")), graph_of_bytes(_unpacked(path, int(one[2]), one[3]), path))
        for one in elements
    ]


def _unpacked(path: Path, claimed: int, text: bytes) -> bytes:
    """The bytes of an archive. Their number is checked before they are unpacked, and while they are."""
    try:
        packed = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise FileFormatError(f"{path}: damaged: the graph is not base64 ({error}).") from error
    if claimed > MOST_EXPANSION * len(packed):
        raise FileFormatError(f"{path}: {len(packed)} bytes claim to be {claimed}, more than {MOST_EXPANSION} times.")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # gzip
    try:
        data = unpacker.decompress(packed, claimed + 1)
    except zlib.error as error:
        raise FileFormatError(f"{path}: damaged: the graph cannot be unpacked ({error}).") from error
    if len(data) != claimed or not unpacker.eof or unpacker.unused_data:
        raise FileFormatError(f"{path}: damaged: a graph of {claimed} bytes was expected, and there are more or fewer.")
    return data

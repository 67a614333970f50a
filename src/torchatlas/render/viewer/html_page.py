"""Documents -> one HTML page that shows them: script, style and fonts are inside, and nothing is ever requested.

The page's Content-Security-Policy names the script and the styles by their hashes, so that nothing else runs, whatever
a name in a graph says. Where scripts are off, a still picture takes the viewer's place.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from html import escape
from pathlib import Path

from torchatlas.errors import StateError
from torchatlas.escapes import clean
from torchatlas.render.fonts import FAMILY, OURS, widths_by_piece
from torchatlas.render.fonts.pieces import font_style
from torchatlas.render.layout.style import STYLE
from torchatlas.render.theme import THEMES

_ASSET = Path(__file__).parent / "asset"  # `make viewer` builds it from viewer/
_LONGEST = 200  # characters of a title or name
# What is seen before the script has read the documents, and where it never will.
_FIRST_STYLE = """
.reading{font:14px/1.5 system-ui,sans-serif;margin:0;padding:2rem;color:CanvasText}
.reading b{display:block;font-size:18px}
.still{font:14px/1.5 system-ui,sans-serif;margin:0;padding:1rem;text-align:center;color:CanvasText}
.still img{max-width:100%;max-height:calc(100vh - 6rem);background:#fff}
"""
_SCRIPTS_OFF_STYLE = "#app{display:none}"


@dataclass(frozen=True)
class PageDocument:
    """A graph for the viewer: the bytes of an `.atlas` file with what panes show beside it (see document.py).

    With an `address` the page does not hold it but asks the server that it comes from.
    """

    name: str
    data: bytes
    address: str = ""

    @cached_property
    def packed(self) -> bytes:
        """The bytes as they are sent and kept."""
        return gzip.compress(self.data, 6, mtime=0)


def page(documents: Sequence[PageDocument], *, title: str, still: str = "") -> bytes:
    """The whole page. Without documents it is an empty viewer, onto which files can be dropped.

    `still` is an SVG that is shown where scripts are off. Equal documents give equal bytes.
    """
    shown = short(title)
    style = f"{font_rules()}{_FIRST_STYLE}{_asset('viewer.css')}"
    script = _asset("viewer.js")
    asks = {"connect_src": "'self'"} if any(document.address for document in documents) else {}
    allowed = policy([script], [style, _SCRIPTS_OFF_STYLE], **asks)
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n',
        '<meta name="referrer" content="no-referrer">\n',
        '<meta name="generator" content="torchatlas">\n',
        f"<title>{escape(shown)}</title>\n<style>{style}</style>\n",
        f"<noscript><style>{_SCRIPTS_OFF_STYLE}</style></noscript>\n</head>\n<body>\n",
        f'<div id="app"><p class="reading" role="status"><b>{escape(shown)}</b>{_reading(documents)}</p></div>\n',
        f'<noscript><div class="still">{_still(shown, still)}</div></noscript>\n',
        f'<script type="application/json" id="style">{_look()}</script>\n',
        *(_element(number, document) for number, document in enumerate(documents)),
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(parts).encode()


def policy(scripts: Sequence[str], styles: Sequence[str], **more: str) -> str:
    """A Content-Security-Policy that allows these scripts and styles, pictures and fonts in the page, and no request.

    `more` are other directives by name: connect_src="'self'".
    """
    directives = {
        "default-src": "'none'",
        "script-src": " ".join(map(_hash, scripts)) or "'none'",
        "style-src": " ".join(map(_hash, styles)) or "'none'",
        "img-src": "data: blob:",
        "font-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def short(text: str) -> str:
    """A name or title as one line of at most 200 characters; it still has to be escaped."""
    text = clean(text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def image_source(svg: str) -> str:
    """An SVG as the address of a picture. In a picture no script of it would run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _reading(documents: Sequence[PageDocument]) -> str:
    if not documents:
        return "reading the viewer …"
    megabytes = sum(len(document.data) for document in documents) / 1e6
    return f"reading {megabytes:,.1f} MB …"


def _still(title: str, svg: str) -> str:
    if not svg:
        return "<p>The viewer needs scripts, and they are off in this browser.</p>"
    picture = f'<img src="{image_source(svg)}" alt="{escape(title)}">'
    return f"{picture}<p>This is a still picture: scripts are off. With scripts the graph can be explored.</p>"


def _element(number: int, document: PageDocument) -> str:
    start = f'<script type="application/x-atlas" id="document-{number}" data-name="{escape(short(document.name))}"'
    if document.address:
        return f'{start} data-src="{escape(document.address)}"></script>\n'
    # export/html.py reads this element: the two change together.
    return f'{start} data-bytes="{len(document.data)}">{base64.b64encode(document.packed).decode()}</script>\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    try:
        text = (_ASSET / name).read_text("utf-8")
    except FileNotFoundError as error:
        raise StateError(f"The viewer was not built: {_ASSET / name} is missing. Run: make viewer") from error
    if "</script" in text or "</style" in text or "\r" in text:  # a browser would end the element, or change the hash
        raise StateError(f"{_ASSET / name} cannot stand inside a page. Build it again: make viewer")
    return text


@cache
def _look() -> str:
    """Colours and geometry of still pictures, so that the viewer looks like them: viewer/src/draw/theme.ts."""
    look = {"themes": {name: asdict(THEMES[name]) for name in THEMES}, "geometry": asdict(STYLE)}
    return json.dumps(look, separators=(",", ":")).replace("<", "\\u003c")


@cache
def font_rules() -> str:
    """Both weights of our font with every character that they have: names may hold any."""
    characters = frozenset[str]().union(*widths_by_piece().values())
    return font_style({False: characters, True: characters}).replace(OURS, FAMILY)  # in a page it is the only one

"""Captures -> pages for a browser on this machine: an HTTP server on the loopback address, read-only.

It answers only requests that carry its token and are addressed to it by the loopback's name, so that neither another
user of the machine nor a page of the web that guesses the port gets anything. Addresses name captures by their hash:
there is no way to write the path of a file.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import threading
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from torchatlas.errors import AtlasError
from torchatlas.render.viewer.captures import Captures
from torchatlas.render.viewer.html_page import font_rules, policy, short

_HERE = Path(__file__).parent
_ADDRESS = re.compile(
    r"/(?P<token>[\w-]{1,100})/(?P<place>|captures\.json|stop|"
    r"view/(?P<ids>[0-9a-f]{16}(\+[0-9a-f]{16})?)|document/(?P<key>[0-9a-f]{16}))"
)
_PATIENCE_S = 20  # a client that says nothing for so long is let go
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class CaptureServer:
    """Serves captures from its own thread while it is open.

    `address` is the page to open. `wait` returns when somebody has asked for the end, in the page or with Ctrl-C.
    """

    def __init__(self, captures: Captures, title: str) -> None:
        self.captures, self.title = captures, title
        self.token = secrets.token_urlsafe(24)
        self._http = _LoopbackServer(self)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._serve, name="torchatlas viewer", daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def _serve(self) -> None:
        with self._http:  # closed at once when it ends: a page that still asks is not left waiting
            self._http.serve_forever(poll_interval=0.1)

    def wait(self) -> None:
        """Until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)  # on Windows an interrupt does not end a longer wait

    def close(self) -> None:
        """End the server. Does nothing if it has ended."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()

    def __enter__(self) -> CaptureServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, owner: CaptureServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours, and nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    server: _LoopbackServer
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        owner = self.server.owner
        match = _ADDRESS.fullmatch(self.path.partition("?")[0])
        token = match["token"] if match else ""
        if not self._is_local() or not hmac.compare_digest(token.encode(), owner.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"refused\n")
        elif match is None or (self.command == "POST") != (match["place"] == "stop"):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")
        elif match["place"] == "stop":
            if self.headers.get("Origin") is None:
                self._send(HTTPStatus.FORBIDDEN, "text/plain", b"refused\n")
                return
            self._send(HTTPStatus.OK, "text/plain", b"ended\n")
            threading.Thread(target=self.server.shutdown, daemon=True).start()
        elif match["place"] == "captures.json":
            content = {"captures": [capture.to_dict() for capture in owner.captures.listed()]}
            self._send(HTTPStatus.OK, "application/json", json.dumps(content).encode())
        elif match["ids"]:
            self._send_page(match["ids"].split("+"))
        elif match["key"]:
            data = owner.captures.document(match["key"])
            if data is None:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"this capture has changed: load the page again\n")
            else:
                self._send(HTTPStatus.OK, "application/x-atlas", data)
        else:
            page, allowed = _listing(owner.title)
            self._send(HTTPStatus.OK, "text/html", page, f"{allowed}; frame-ancestors 'none'")

    def _is_local(self) -> bool:
        """Whether a request is addressed to this server by name, and comes from no page but its own.

        A page of the web whose name was made to lead to 127.0.0.1 (DNS rebinding) has its own name as Host.
        """
        port = self.server.server_address[1]
        hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        host = self.headers.get_all("Host") or []
        origins = self.headers.get_all("Origin") or []
        sites = self.headers.get_all("Sec-Fetch-Site") or []
        # Following a link shows the page to the person alone, and says nothing to where the link stands.
        follows_link = self.command == "GET" and self.headers.get_all("Sec-Fetch-Dest") == ["document"]
        return (
            len(host) == 1
            and host[0] in hosts
            and all(origin in {f"http://{name}" for name in hosts} for origin in origins)
            and (follows_link or all(site in ("same-origin", "none") for site in sites))
        )

    def _send_page(self, ids: list[str]) -> None:
        # The page itself says what it may do; only a header can say who may hold it in a frame.
        framed = "frame-ancestors 'self'"
        try:
            page = self.server.owner.captures.page(ids)
        except (AtlasError, OSError) as error:  # a damaged file, or one that is being written by others
            body = f'<!doctype html><meta charset="utf-8"><title>not readable</title><p>{escape(short(str(error)))}</p>'
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, "text/html", body.encode(), f"default-src 'none'; {framed}")
            return
        if page is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"this capture is gone\n")
        else:
            self._send(HTTPStatus.OK, "text/html", page, framed)

    def _send(self, status: HTTPStatus, kind: str, body: bytes, allowed: str = "default-src 'none'") -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", allowed)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server refuses itself (an unknown method, a line too long), in the same few words."""
        self.close_connection = True
        self._send(HTTPStatus(code), "text/plain", b"refused\n")

    def version_string(self) -> str:
        return "torchatlas"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: addresses hold the token."""


def _listing(title: str) -> tuple[bytes, str]:
    """The page that lists captures beside the viewer, and its policy."""
    script, style = ((_HERE / f"captures.{kind}").read_text("utf-8") for kind in ("js", "css"))
    style = font_rules() + style
    allowed = policy([script], [style], connect_src="'self'", frame_src="'self'")
    shown = escape(short(title))
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{shown} - torchatlas</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{style}</style>\n</head>\n'
        f'<body>\n<nav aria-label="captures"><h1>{shown}</h1><p id="state" role="status">looking …</p>'
        '<ul id="list"></ul>'
        '<footer><button id="compare" disabled title="choose two">compare</button>'
        '<button id="stop" title="end the server">stop</button></footer></nav>\n'
        '<iframe id="frame" title="viewer" hidden></iframe>\n'
        '<p id="empty" class="empty">No capture is here yet. Save one, and it appears: graph.save("step.atlas")</p>\n'
        f"<noscript>The list needs scripts, and they are off in this browser.</noscript>\n<script>{script}</script>\n"
        "</body>\n</html>\n"
    )
    return page.encode(), allowed

"""The loopback server, asked with raw sockets: it answers its own page and nobody else."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import torchatlas as atlas
from torchatlas.errors import FileSystemError
from torchatlas.export.html import load_pages
from torchatlas.graph import Graph
from torchatlas.render.viewer.captures import Captures
from torchatlas.render.viewer.server import CaptureServer

SECRET = "what nobody may read"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return atlas.capture(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8))


@pytest.fixture
def folder(graph: Graph, tmp_path: Path) -> Path:
    (tmp_path / "secret.atlas").write_text("PK\x03\x04" + SECRET)
    runs = tmp_path / "runs"
    (runs / "later").mkdir(parents=True)
    graph.save(runs / "step.atlas")
    graph.save(runs / "later" / "step.json")
    graph.save(runs / "page.html")
    (runs / "notes.json").write_text('{"format": "mine"}')
    (runs / "other.html").write_text("<p>mine</p>")
    (runs / "secret.txt").write_text(SECRET)
    (runs / ".hidden.atlas").write_bytes((runs / "step.atlas").read_bytes())
    (runs / "link.atlas").symlink_to(tmp_path / "secret.atlas")
    (runs / "up").symlink_to(tmp_path)
    return runs


@pytest.fixture
def server(folder: Path) -> Iterator[CaptureServer]:
    with CaptureServer(Captures([folder]), "<runs>") as server:
        yield server


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def ask(server: CaptureServer, place: str = "", *lines: str, method: str = "GET", host: str | None = None) -> Answer:
    """Send a request word by word. `place` is below the token, or absolute."""
    path = place if place.startswith(("/", "http")) else f"/{server.token}/{place}"
    host = f"Host: 127.0.0.1:{server.port}" if host is None else host
    text = "\r\n".join([f"{method} {path} HTTP/1.1", *([host] if host else []), *lines, "", ""])
    return send(server, text.encode("latin-1"))


def send(server: CaptureServer, data: bytes) -> Answer:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Answer(int(first.split()[1]), headers, body)


def listed(server: CaptureServer) -> dict[str, str]:
    """Ids by name, in the order of the list."""
    return {one["name"]: one["id"] for one in json.loads(ask(server, "captures.json").body)["captures"]}


# -- what it gives -----------------------------------------------------------------------------------------------------


def test_it_listens_on_the_loopback_only(server: CaptureServer) -> None:
    assert server._http.socket.getsockname()[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.port}/{server.token}/"
    assert len(server.token) >= 32


def test_the_list_has_our_files_and_no_others(server: CaptureServer) -> None:
    assert set(listed(server)) == {"step.atlas", "page.html", os.path.join("later", "step.json")}


def test_a_capture_is_a_page_of_the_viewer(server: CaptureServer, graph: Graph, tmp_path: Path) -> None:
    for name, key in listed(server).items():
        answer = ask(server, f"view/{key}")
        assert answer.status == 200
        (tmp_path / "again.html").write_bytes(answer.body)
        assert atlas.load(tmp_path / "again.html") == graph, name
        assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert ask(server, f"view/{key}?1234-5678").status == 200


def test_two_captures_are_compared(server: CaptureServer, tmp_path: Path) -> None:
    ids = listed(server)
    answer = ask(server, f"view/{ids['step.atlas']}+{ids['page.html']}")
    (tmp_path / "both.html").write_bytes(answer.body)
    assert [name for name, _ in load_pages(tmp_path / "both.html")] == ["step.atlas", "page.html"]


def test_a_large_document_is_asked_for_by_its_page(server: CaptureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    key = listed(server)["step.atlas"]
    monkeypatch.setattr("torchatlas.render.viewer.captures.MOST_INLINE_BYTES", 1000)
    page = ask(server, f"view/{key}").body.decode()
    found = re.search(r'id="document-0" data-name="step.atlas" data-src="\.\./(document/[0-9a-f]{16})"></script>', page)
    assert found
    assert "connect-src 'self'\">" in page
    answer = ask(server, found[1])
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/x-atlas; charset=utf-8")
    assert gzip.decompress(answer.body).startswith(b"PK\x03\x04")
    assert ask(server, found[1][:-1] + "x").status == 403
    assert ask(server, "document/0000000000000000").status == 404
    assert ask(server, found[1], "Origin: https://evil.example").status == 403


def test_the_page_of_the_list_allows_itself_only(server: CaptureServer) -> None:
    answer = ask(server)
    policy = answer.headers["Content-Security-Policy"]
    assert answer.status == 200
    assert "default-src 'none'" in policy
    assert "connect-src 'self'; frame-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search("unsafe|http|\\*", policy)
    assert b"<h1>&lt;runs&gt;</h1>" in answer.body
    for name, value in {
        "Cache-Control": "no-store",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Server": "torchatlas",
    }.items():
        assert answer.headers[name] == value
    assert "Access-Control-Allow-Origin" not in answer.headers
    head = ask(server, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(answer.body))


def test_files_that_come_change_and_go_are_seen(server: CaptureServer, folder: Path, graph: Graph) -> None:
    before = ask(server, "captures.json").body
    graph.save(folder / "new.atlas")
    os.utime(folder / "new.atlas", (time.time() + 10,) * 2)
    assert next(iter(listed(server))) == "new.atlas"
    key = listed(server)["step.atlas"]
    first = ask(server, f"view/{key}").body
    small = atlas.capture(nn.ReLU(), torch.randn(2))
    small.save(folder / "step.atlas")
    assert ask(server, f"view/{key}").body != first
    (folder / "step.atlas").unlink()
    assert ask(server, f"view/{key}").status == 404
    assert ask(server, "captures.json").body != before


def test_a_damaged_file_says_what_is_wrong(server: CaptureServer, folder: Path) -> None:
    (folder / "<b>bad.atlas").write_text("PK\x03\x04<script>")
    answer = ask(server, f"view/{listed(server)['<b>bad.atlas']}")
    assert answer.status == 422
    assert b"&lt;b&gt;bad.atlas: damaged" in answer.body
    assert b"<script" not in answer.body
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_files_by_themselves(graph: Graph, tmp_path: Path) -> None:
    path = graph.save(tmp_path / "step.atlas")
    assert [one.name for one in Captures([path]).listed()] == ["step.atlas"]
    with pytest.raises(FileSystemError, match="There is no file or folder"):
        Captures([tmp_path / "nothing"])


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "",
        "Host: evil.example",
        "Host: evil.example:{port}",
        "Host: 127.0.0.1",
        "Host: 127.0.0.1:1",
        "Host: 127.0.0.1:{port}.evil.example",
        "Host: 127.0.0.1:{port}\r\nHost: evil.example",
        "Host: [::1]:{port}",
    ],
)
def test_other_hosts_are_refused(server: CaptureServer, host: str) -> None:
    answer = ask(server, host=host.format(port=server.port))
    assert (answer.status, answer.body) == (403, b"refused\n")


def test_localhost_is_this_host(server: CaptureServer) -> None:
    assert ask(server, host=f"Host: localhost:{server.port}").status == 200


@pytest.mark.parametrize(
    "line",
    [
        "Origin: https://evil.example",
        "Origin: null",
        "Origin: http://127.0.0.1",
        "Origin: http://127.0.0.1:1",
        "Origin: http://127.0.0.1:{port}\r\nOrigin: https://evil.example",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ],
)
def test_other_origins_are_refused(server: CaptureServer, line: str) -> None:
    for place in ("", "captures.json", f"view/{listed(server)['step.atlas']}"):
        answer = ask(server, place, line.format(port=server.port))
        assert (answer.status, answer.body) == (403, b"refused\n")


def test_its_own_page_may_ask(server: CaptureServer) -> None:
    own = f"Origin: http://127.0.0.1:{server.port}"
    assert ask(server, "captures.json", own, "Sec-Fetch-Site: same-origin").status == 200
    assert ask(server, "", "Sec-Fetch-Site: none").status == 200


def test_a_link_may_lead_to_it(server: CaptureServer) -> None:
    """As that in the file which the browser is started with."""
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert ask(server, "", *link).status == 200
    assert ask(server, "", *link, "Origin: https://evil.example").status == 403
    assert ask(server, "", *link[:2], "Sec-Fetch-Dest: iframe").status == 403
    assert ask(server, "stop", *link, f"Origin: http://127.0.0.1:{server.port}", method="POST").status == 403


def test_a_wrong_token_is_refused(server: CaptureServer) -> None:
    for token in ("", "x", server.token[:-1], server.token + "x", "é", "%2e%2e", "a" * 60_000):
        for place in ("", "captures.json", "view/0000000000000000"):
            answer = ask(server, f"/{token}/{place}")
            assert (answer.status, answer.body) == (403, b"refused\n"), token
    assert ask(server, "/").status == 403
    assert ask(server, f"/{server.token}").status == 403
    assert ask(server, f"/?{server.token}").status == 403


@pytest.mark.parametrize(
    "place",
    [
        "view/../secret.txt",
        "view/..%2fsecret.txt",
        "view/%2e%2e/%2e%2e/etc/passwd",
        "../../../../etc/passwd",
        "step.atlas",
        "secret.txt",
        "view/step.atlas",
        "view/0000000000000000",
        "view/0000000000000000+0000000000000000",
        "view/",
        "captures.json/",
        "captures.js",
        "..\\secret.txt",
        "view/\x00",
    ],
)
def test_no_address_leads_to_another_file(server: CaptureServer, place: str) -> None:
    answer = ask(server, place)
    assert answer.status in (400, 403, 404)
    assert SECRET.encode() not in answer.body
    assert b"root:" not in answer.body


def test_addresses_of_others_are_refused(server: CaptureServer) -> None:
    assert ask(server, f"http://evil.example/{server.token}/").status == 403
    assert ask(server, f"http://127.0.0.1:{server.port}/{server.token}/").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_it_is_read_only(server: CaptureServer, folder: Path, method: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    for place in ("", "captures.json", f"view/{listed(server)['step.atlas']}"):
        assert ask(server, place, f"Origin: http://127.0.0.1:{server.port}", method=method).status in (404, 501)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_nonsense_is_answered_and_nothing_is_printed(server: CaptureServer, capfd: pytest.CaptureFixture[str]) -> None:
    for data in (b"\r\n", b"GET\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 70_000 + b"\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                assert SECRET.encode() not in part
                assert server.token.encode() not in part
    assert ask(server).status == 200
    assert capfd.readouterr() == ("", "")


# -- its end -----------------------------------------------------------------------------------------------------------


def test_its_page_can_end_it_and_nobody_else(server: CaptureServer) -> None:
    assert ask(server, "stop", method="POST").status == 403
    assert ask(server, "stop", "Origin: https://evil.example", method="POST").status == 403
    assert ask(server, "stop", f"Origin: http://127.0.0.1:{server.port}").status == 404
    assert ask(server, "stop", f"Origin: http://127.0.0.1:{server.port}", method="POST").body == b"ended\n"
    server.wait()
    assert not server._thread.is_alive()


def test_a_closed_server_is_gone(folder: Path) -> None:
    with CaptureServer(Captures([folder]), "runs") as server:
        pass
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)

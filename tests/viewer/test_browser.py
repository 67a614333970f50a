"""The browser fixtures notice what they are there to notice."""

from __future__ import annotations

from pathlib import Path

import browser as browser_module
import pytest
from browser import Visit, unavailable

QUIET = '<!doctype html><html data-ready="yes"><meta charset="utf-8"><title>t</title>'
POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'">"""


def written(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "page.html"
    path.write_text(QUIET + body + "quiet", encoding="utf-8")
    return path


def test_a_quiet_page_passes(page_of, tmp_path: Path) -> None:
    page = page_of(written(tmp_path, "<script>URL.createObjectURL(new Blob(['x']))</script>"), fragment="#a=1")
    assert page.locator("body").inner_text() == "quiet"
    assert page.evaluate("location.hash") == "#a=1"


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('<img src="beside.png">', "asked for"),
        ("<script>fetch('https://example.invalid/x').catch(() => 0)</script>", "asked for"),
        ("<script>new WebSocket('ws://127.0.0.1:9')</script>", "asked for"),
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>setTimeout(() => { throw new Error('late') })</script>", "late"),
        ("<script>Promise.reject(new Error('unhandled'))</script>", "unhandled"),
        ("<script>alert('hacked')</script>", "hacked"),
        (POLICY + "<script>document.title = 'ran'</script>", "Content Security Policy"),
    ],
)
def test_a_page_that_is_not_quiet_is_told_on(browser, tmp_path: Path, body: str, complaint: str) -> None:
    visit = Visit.to(browser, written(tmp_path, body))
    visit.page.wait_for_timeout(200)
    visit.close()
    with pytest.raises(AssertionError, match=complaint):
        visit.check()


def test_without_a_browser_tests_are_skipped_but_fail_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser_module, "NAMES", ("no-such-browser",))
    monkeypatch.delenv("TORCHATLAS_CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-browser"), browser_module.chromium():
        pass
    monkeypatch.setenv("TORCHATLAS_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="TORCHATLAS_CI"):
        unavailable("nothing is there")

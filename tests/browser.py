"""Chromium, driven by Playwright: opens a page and keeps what it asked for, what it logged and what it threw."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
READY_MS = 30_000  # a page that is not ready by then never will be, also on a busy machine
DESKTOP = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}


def unavailable(reason: str) -> NoReturn:
    """Skip the test; in CI, where everything has to be there, fail it."""
    if os.environ.get("TORCHATLAS_CI"):
        pytest.fail(f"{reason}, and TORCHATLAS_CI is set: CI skips no browser test", pytrace=False)
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The machine's Chromium or Chrome. Skips the test if there is none, or no Playwright."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        unavailable(f"none of {', '.join(NAMES)} is on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("Playwright is not installed (pip install playwright)")
    with sync_playwright() as playwright:
        # Containers have neither user namespaces for the sandbox nor a large /dev/shm.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(eq=False)
class Visit:
    """A page of one context of its own, and all that is known of it from outside."""

    page: Page
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # console errors, exceptions, dialogs, a crash

    @classmethod
    def to(cls, browser: Browser, path: Path, *, fragment: str = "", script: str = "", **options: Any) -> Visit:
        """Open a file. `script` runs before those of the page; `options` are those of a browser context."""
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        if script:
            context.add_init_script(script)
        visit = cls(context.new_page())
        page = visit.page
        page.set_default_timeout(READY_MS)
        page.on("request", lambda request: visit.requests.append(request.url))
        page.on("websocket", lambda socket: visit.requests.append(socket.url))
        page.on("console", lambda message: message.type == "error" and visit.errors.append(message.text))
        page.on("pageerror", lambda error: visit.errors.append(error.stack or str(error)))
        page.on("dialog", lambda dialog: (visit.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("crash", lambda _: visit.errors.append("the page crashed"))
        page.goto(path.resolve().as_uri() + fragment)
        return visit

    def wait_until_ready(self) -> str:
        """What the page says of itself once it is interactive: `data-ready` of the root element."""
        # A selector, not a function to evaluate: the page's Content-Security-Policy does not concern it.
        self.page.locator("html[data-ready]").wait_for(state="attached")
        return self.page.locator("html").get_attribute("data-ready") or ""

    def check(self) -> None:
        """The page has asked for nothing but itself, and nothing went wrong in it."""
        itself = self.page.url.split("#")[0]
        # A blob was made by the page itself.
        others = [url for url in self.requests if url.split("#")[0] != itself and not url.startswith("blob:")]
        assert not others, f"the page asked for {others}"
        assert not self.errors, f"the page reports {self.errors}"

    def close(self) -> None:
        self.page.context.close()

"""A browser for the tests of the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from browser import Visit, chromium

from torchatlas.graph import Graph

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


# Of a module and not of the session: while Playwright runs, an asyncio loop counts as running in this thread, and
# tests of other modules want to start one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


class PageOf(Protocol):
    def __call__(self, shown: Graph | Path, *, ready: str | None = "yes", **options: Any) -> Page: ...


@pytest.fixture
def visits() -> list[Visit]:
    """What `page_of` has opened in this test, the newest last."""
    return []


@pytest.fixture
def page_of(browser: Browser, tmp_path: Path, visits: list[Visit]) -> Iterator[PageOf]:
    """Opens a graph, saved as HTML, or an HTML file, and waits until it says that it is `ready`; None: does not wait.

    Other options are those of `Visit.to`. After the test, no page may have asked for anything but itself, nor have
    logged or thrown an error.
    """

    def opened(shown: Graph | Path, *, ready: str | None = "yes", **options: Any) -> Page:
        path = shown if isinstance(shown, Path) else tmp_path / f"graph{len(visits)}.html"
        if isinstance(shown, Graph):
            shown.save(path)
        visits.append(visit := Visit.to(browser, path, **options))
        if ready is not None:
            assert visit.wait_until_ready() == ready, visit.page.locator("body").inner_text()[:500]
        return visit.page

    yield opened
    for visit in visits:
        visit.close()
    for visit in visits:
        visit.check()

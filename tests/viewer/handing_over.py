"""A file is given to a page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def hand_over(page: Page, path: Path, way: str = "chosen") -> None:
    """Give the page a file as a person would: by the button, or by drag and drop."""
    if way == "chosen":
        page.locator("input[type=file]").first.set_input_files(path)
        return
    # The page's policy allows no request, so that the bytes come along as text.
    page.evaluate(
        """([name, text]) => {
          const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], name));
          const target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
          for (const type of ["dragenter", "dragover", "drop"])
            target.dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: transfer }));
        }""",
        [path.name, base64.b64encode(path.read_bytes()).decode()],
    )

"""`atlas.view`: a page of the viewer, written to a temporary file and opened in the browser."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
import webbrowser
from html import escape
from pathlib import Path
from typing import Any

from torchatlas.argument_errors import explains_arguments
from torchatlas.files import replacing
from torchatlas.render.viewer.content import page_of, viewed

_PREFIX = "torchatlas-view-"
_KEPT_S = 24 * 60 * 60  # a browser reads the file again when its page is reloaded, also after this process has ended


@explains_arguments
def view(
    *items: Any,
    title: str = "",
    overlay: Any = None,
    findings: Any = None,
    partition: Any = None,
    stages: Any = None,
    backward: Any = None,
    device: Any = None,
) -> Path:
    """Open the viewer in the browser: one page, which asks for nothing but itself.

    The page is kept for a day. A warning says where it is if there is no browser to open it in.

    Args:
        *items: What to show: a graph, the path of its file, a recording, a traced model or a report of a graph. Two are
            compared side by side. Without items the viewer is empty, and files can be dropped onto it.
        title: The heading of the page.
        overlay: Numbers of your own to colour by: a dictionary from names of nodes or paths of modules to numbers.
        findings: The doctor's findings, to be shown where they are.
        partition: A PartitionReport, to be drawn over the graph.
        stages: A PipelinePlan, likewise.
        backward: A BackwardRecording, which the backward player plays.
        device: The device profile of the roofline, as for `atlas.cost`.
    Returns:
        The path of the page.
    Raises:
        InvalidInputError: An item is nothing that can be shown, or there are more than two.
        FileFormatError: A file is damaged.
    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> page = atlas.view(graph, overlay={"addmm": 0.5})  # doctest: +SKIP
    """
    shown = [graph for item in items for graph in viewed(item)]
    data = page_of(
        shown,
        title=title,
        overlay=overlay,
        findings=findings,
        partition=partition,
        stages=stages,
        backward=backward,
        device=device,
    )
    path = temporary_page(data, title or (shown[0].name if shown else "viewer"))
    if not open_in_browser(path.as_uri()):
        warnings.warn(f"There is no browser to open here. The page is in {path}", stacklevel=2)
    return path


def temporary_page(data: bytes, name: str) -> Path:
    """Write a page into a folder of its own, which only this user can read. Pages of yesterday are removed."""
    _sweep()
    stem = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-")[:60] or "viewer"
    path = Path(tempfile.mkdtemp(prefix=_PREFIX)) / f"{stem.removesuffix('.html')}.html"
    with replacing(path) as file:
        file.write(data)
    return path


def redirecting_page(address: str) -> Path:
    """A page that leads to an address with a secret in it: in the browser's command line any user could read it."""
    shown = escape(address)
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={shown}"><a href="{shown}">'
    return temporary_page(f"{text}the viewer</a>".encode(), "viewer")


def open_in_browser(address: str) -> bool:
    """Open an address; False where there is nothing to open it with."""
    has_screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform not in ("darwin", "win32") and not has_screen:
        return False  # webbrowser might start one that draws in the terminal
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False


def _sweep() -> None:
    """Remove the folders of old pages that this user made."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            about = folder.lstat()
        except OSError:  # another process was quicker
            continue
        ours = not hasattr(os, "getuid") or about.st_uid == os.getuid()
        if stat.S_ISDIR(about.st_mode) and ours and time.time() - about.st_mtime > _KEPT_S:
            shutil.rmtree(folder, ignore_errors=True)

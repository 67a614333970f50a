"""A run -> a page of the viewer: the graph of one step, with a timeline of all of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from torchatlas.errors import AnalysisError, FileSystemError
from torchatlas.files import replacing
from torchatlas.render.viewer.browser import open_in_browser, temporary_page
from torchatlas.render.viewer.content import Viewed, page_of
from torchatlas.runs.run import Run

_COLUMNS = (  # in the order of the timeline; figures by module are for run.plot
    "number",
    "wall_ns",
    "unrecorded_ns",
    "device_ns",
    "loss",
    "gradient_norm",
    "peak_bytes",
    "process_bytes",
    "device_bytes",
    "device_peak_bytes",
)


def shown_step(run: Run, step: int | None) -> int:
    """The number of the step whose graph a page shows: the last, unless another is asked for."""
    if not len(run):
        raise AnalysisError(f"{run.path} holds no step, so there is nothing to show.")
    return run.steps.numbers[-1] if step is None else step


def run_page(run: Run, *, step: int | None = None, title: str = "") -> bytes:
    """The page of a run."""
    return page_of([viewed_run(run, step)], title=title)


def viewed_run(run: Run, step: int | None = None) -> Viewed:
    """The graph of a step, with the figures of all steps."""
    number = shown_step(run, step)
    columns = {name: run.columns[name] for name in _COLUMNS if name in run.columns}
    steps: dict[str, Any] = {"columns": columns, "shown": number, "changes": run.changes}
    return Viewed(run.graph(number), run.path.name, {"steps": steps})


def write_page(run: Run, path: Path, *, step: int | None, title: str) -> Path:
    data = run_page(run, step=step, title=title)
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot write {path}: {error.strerror or error}.") from error
    return path


def show_page(run: Run, *, step: int | None, title: str) -> Path:
    path = temporary_page(run_page(run, step=step, title=title), title or run.path.name)
    if not open_in_browser(path.as_uri()):
        warnings.warn(f"There is no browser to open here. The page is in {path}", stacklevel=3)
    return path

"""Graph or watched training -> Weights & Biases: the viewer as a panel, the run's folder and page as an artifact."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from torchatlas.errors import StateError
from torchatlas.graph import Graph
from torchatlas.graph.formats import imported
from torchatlas.integrations.loggers import Sink
from torchatlas.integrations.training_report import TrainingReport


def log_graph(graph: Graph, *, run: Any = None, name: str = "graph") -> None:
    """Log a graph to W&B: the viewer as a panel, and its page as an artifact.

    Args:
        graph: The graph.
        run: The run to log to; None is the one that wandb.init() began.
        name: What panel and artifact are called.
    Raises:
        StateError: There is no run.
        MissingDependencyError: wandb is not installed.
    """
    wandb = imported("wandb", "Logging to W&B needs")
    run = wandb.run if run is None else run
    if run is None:
        raise StateError("W&B has no run to log to: call wandb.init() first.")
    with tempfile.TemporaryDirectory() as folder:
        page = graph.save(Path(folder) / f"{_plain(name)}.html")
        _log_files(run, name, page, [page])


def sink(run: Any) -> Sink:
    """What a training writes to a run of W&B.

    Figures are logged without a step of their own (commit=False): they stand beside what the program logs next, and
    never move its step on. The artifact has them all.
    """

    def log(figures: dict[str, float], step: int) -> None:
        run.log({**figures, "atlas/step": step}, commit=False)

    def finish(report: TrainingReport) -> None:
        page = next((path for path in report.files if path.suffix == ".html"), None)
        folder = [] if report.run is None else [report.run.path]
        stem = "run" if report.run is None else report.run.path.stem
        _log_files(run, stem, page, [*report.files, *folder])

    return Sink("W&B", log, finish)


def _log_files(run: Any, name: str, page: Path | None, paths: list[Path]) -> None:
    wandb = imported("wandb", "Logging to W&B needs")
    if page is not None:
        # inject=False: our page has a style of its own. read here: the file may be gone when W&B uploads.
        run.log({f"atlas/{_plain(name)}": wandb.Html(page.read_text("utf-8"), inject=False)}, commit=False)
    artifact = wandb.Artifact(f"atlas-{_plain(name)}-{_plain(str(run.id))}", type="torchatlas")
    for path in paths:
        if path.is_dir():
            artifact.add_dir(str(path), name=path.name)
        else:
            artifact.add_file(str(path), name=path.name)
    run.log_artifact(artifact)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", name)

"""Graph or watched training -> MLflow: metrics of steps, the viewer's page and the run's folder as artifacts."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

from torchatlas.errors import StateError
from torchatlas.graph import Graph
from torchatlas.graph.formats import imported
from torchatlas.integrations.loggers import Sink
from torchatlas.integrations.training_report import TrainingReport

_FOLDER = "torchatlas"  # among the artifacts of a run


def log_graph(graph: Graph, *, run_id: str | None = None, name: str = "graph") -> None:
    """Log the viewer's page of a graph as an artifact of MLflow.

    Args:
        graph: The graph.
        run_id: The run to log to; None is the active one.
        name: What the page is called, without .html.
    Raises:
        StateError: There is no run.
        MissingDependencyError: mlflow is not installed.
    """
    mlflow = imported("mlflow", "Logging to MLflow needs")
    if run_id is None:  # mlflow.log_artifact would begin a run of its own
        active = mlflow.active_run()
        if active is None:
            raise StateError("MLflow has no active run to log to: call mlflow.start_run() first, or give run_id=.")
        run_id = active.info.run_id
    with tempfile.TemporaryDirectory() as folder:
        page = graph.save(Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.html")
        mlflow.MlflowClient().log_artifact(run_id, str(page), _FOLDER)


def sink(run: Any) -> Sink:
    """What a training writes to a run of MLflow, such as mlflow.active_run()."""
    mlflow = imported("mlflow", "Logging to MLflow needs")
    return sink_of_client(mlflow.MlflowClient(), run.info.run_id)


def sink_of_client(client: Any, run_id: str) -> Sink:
    """What a training writes to a run by its id; it can still write after the run has ended."""
    entities = imported("mlflow.entities", "Logging to MLflow needs", "mlflow")

    def log(figures: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run_id, metrics=[entities.Metric(name, one, now, step) for name, one in figures.items()])

    def finish(report: TrainingReport) -> None:
        for path in report.files:
            client.log_artifact(run_id, str(path), _FOLDER)
        if report.run is not None:
            client.log_artifacts(run_id, str(report.run.path), f"{_FOLDER}/{report.run.path.name}")

    return Sink("MLflow", log, finish)

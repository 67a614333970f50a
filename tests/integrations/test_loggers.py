"""W&B (offline) and MLflow (a file store) hold the page, the folder and the figures of a watched training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.programs_with_steps import trained
from torch import nn

import torchatlas as atlas
from torchatlas.errors import StateError
from torchatlas.integrations.loggers import sink_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def wandb_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG", "CACHE", "DATA", "ARTIFACT"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-files"))
    import wandb

    run = wandb.init(project="torchatlas", dir=str(tmp_path))
    yield run
    run.finish()
    wandb.teardown()


@pytest.fixture
def mlflow_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        yield mlflow.start_run()
    finally:
        mlflow.end_run()
        mlflow.set_tracking_uri(before)


def watched(logger: Any, **options: Any) -> Any:
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=2, loggers=[logger], **options) as watch:
        for _ in range(5):
            step()
    assert watch.notes == []
    assert watch.report is not None
    return watch.report


def test_mlflow_has_metrics_and_artifacts(mlflow_run: Any) -> None:
    import mlflow

    report = watched(mlflow_run)
    client, run_id = mlflow.MlflowClient(), mlflow_run.info.run_id
    peaks = client.get_metric_history(run_id, "atlas/peak_bytes")
    assert [(one.step, one.value) for one in peaks] == list(zip([0, 2, 4], report.run.steps["peak_bytes"], strict=True))
    names = [file.path for file in client.list_artifacts(run_id, "torchatlas")]
    assert set(names) == {"torchatlas/run.html", "torchatlas/run.txt", "torchatlas/run.atlas"}
    assert len(atlas.load(client.download_artifacts(run_id, "torchatlas/run.atlas"))) == 3
    from torchatlas.integrations.mlflow import log_graph

    log_graph(report.graph, name="by hand")
    page = Path(client.download_artifacts(run_id, "torchatlas/by_hand.html"))
    loaded = atlas.Graph.load(page)
    assert loaded.hash == report.graph.hash


def test_mlflow_without_a_run_begins_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torchatlas.integrations.mlflow import log_graph

    graph = atlas.capture(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(StateError, match=r"mlflow\.start_run\(\)"):
        log_graph(graph)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_tracker_of_accelerate_does_not_move_the_programs_step_either(
    wandb_run: Any, request: pytest.FixtureRequest
) -> None:
    """W&B drops what is logged with a smaller step than the run's: here the program counts epochs of three steps."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.PartialState(cpu=True)
    request.addfinalizer(accelerate.PartialState._reset_state)
    tracker = accelerate.tracking.WandBTracker("project")
    tracker.run = wandb_run  # as its `start` does
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, loggers=[tracker]) as watch:
        for epoch in range(3):
            for _ in range(3):
                step()
            wandb_run.log({"mine": epoch}, step=epoch)
    assert watch.notes == []
    assert wandb_run.step == 2
    wandb_run.log({"mine": 3}, step=3)  # which writes what was logged for step 2
    assert wandb_run.summary["mine"] == 2
    assert wandb_run.summary["atlas/step"] == 8


def test_wandb_has_a_panel_an_artifact_and_never_moves_the_programs_step(wandb_run: Any) -> None:
    model, optimizer, step = trained()
    with atlas.watch(optimizer, model, every=1, loggers=[wandb_run]) as watch:
        for number in range(3):
            step()
            wandb_run.log({"mine": number}, step=number)
    assert watch.notes == []
    assert wandb_run.step == 2
    wandb_run.log({"mine": 3}, step=3)  # which writes what was logged for step 2
    assert wandb_run.summary["mine"] == wandb_run.summary["atlas/step"] == 2
    assert watch.report is not None
    folder = Path(wandb_run.dir).parent
    pages = [path.read_text() for path in folder.rglob("*.html")]
    assert any(watch.report.files[0].read_text() == page for page in pages)
    from torchatlas.integrations.wandb import log_graph

    assert watch.report.graph is not None
    log_graph(watch.report.graph, run=wandb_run, name="by hand")
    assert len([*folder.rglob("*.html")]) == len(pages) + 1


def test_wandb_without_a_run_is_refused() -> None:
    from torchatlas.integrations.wandb import log_graph

    with pytest.raises(StateError, match=r"wandb\.init\(\)"):
        log_graph(atlas.capture(nn.Linear(2, 2), torch.ones(1, 2)))


def test_what_an_artifact_of_wandb_holds(wandb_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(type(wandb_run), "log_artifact", lambda self, artifact: seen.append(artifact))
    report = watched(wandb_run)
    (artifact,) = seen
    entries = set(artifact.manifest.entries)
    assert {"run.html", "run.txt", "run.atlas/run.jsonl"} <= entries
    assert artifact.type == "torchatlas"
    assert json.loads(json.dumps(report.to_dict()))["files"]


def test_a_sink_is_chosen_by_class_alone() -> None:
    class CSVLogger:
        __module__ = "lightning.pytorch.loggers.csv_logs"

        def __init__(self) -> None:
            self.logged: list[Any] = []

        def log_metrics(self, figures: Any, step: int) -> None:
            self.logged.append((figures, step))

    logger = CSVLogger()
    sink = sink_of(logger)
    sink.log({"atlas/wall_ms": 1.0}, 4)
    assert logger.logged == [({"atlas/wall_ms": 1.0}, 4)]
    assert sink.name == "CSVLogger"

"""torchatlas convert and torchatlas join: any file of ours in any format, ranks together, a profiler's times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from profiled_step import PATH, made
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.graph import Graph
from torchatlas.graph.formats import WRITERS


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def ranks(tmp_path: Path) -> list[Path]:
    """The files of ranks 0 and 2, of three."""
    files = []
    for rank in (0, 2):
        graph = atlas.capture(nn.Linear(4, 2), torch.ones(rank + 1, 4))
        graph.metadata |= {"rank": rank, "world_size": 3}
        files.append(graph.save(tmp_path / f"run-rank{rank}.atlas"))
    return files


@pytest.mark.parametrize(
    "suffix", [".json", ".html", ".trace.json", ".trace.json.gz", ".speedscope.json", ".et", ".mmd"]
)
def test_a_file_becomes_another(ranks: list[Path], tmp_path: Path, suffix: str) -> None:
    result = run("convert", ranks[0], "-o", tmp_path / f"new{suffix}", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"files": [str(tmp_path / f"new{suffix}")], "missing_ranks": []}
    if suffix in (".json", ".html"):
        assert Graph.load(tmp_path / f"new{suffix}") == Graph.load(ranks[0])
    assert (tmp_path / f"new{suffix}").stat().st_size > 100


def test_ranks_become_one_trace_or_several_files(ranks: list[Path], tmp_path: Path) -> None:
    result = run("convert", *ranks, "-o", tmp_path / "all.trace.json")
    assert result.exit_code == 0, result.output
    assert "rank 1 of 3 is missing" in result.stderr
    events = json.loads((tmp_path / "all.trace.json").read_bytes())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 2}
    result = run("convert", *ranks, "-o", tmp_path / "all.et", "--json")
    assert json.loads(result.stdout)["missing_ranks"] == [1]
    assert sorted(path.name for path in tmp_path.glob("*.et")) == ["all.0.et", "all.2.et"]
    run("convert", *ranks, "-o", tmp_path / "one.trace.json", "--per-rank", "--no-details")
    assert sorted(path.name for path in tmp_path.glob("one*")) == ["one-rank0.trace.json", "one-rank2.trace.json"]


def test_what_cannot_be_written_is_said(ranks: list[Path], tmp_path: Path) -> None:
    for arguments, says in [
        ((ranks[0], "-o", tmp_path / "new.xyz"), "no format is written under this suffix"),
        ((ranks[0], ranks[0], "-o", tmp_path / "new.trace.json"), "both of rank 0"),
        ((ranks[0], "-o", tmp_path / "new.atlas", "--no-details"), "no option details"),
        ((tmp_path / "none.atlas", "-o", tmp_path / "new.json"), "Cannot read"),
        ((ranks[0], "-o", tmp_path / "nowhere" / "new.json"), "does not exist"),
        ((ranks[0],), "--output"),
    ]:
        result = run("convert", *arguments)
        assert result.exit_code == 2
        assert says in result.output, result.output
    help_text = run("convert", "--help").output
    assert all(suffix in help_text for suffix in WRITERS)


def test_a_trace_is_joined(tmp_path: Path) -> None:
    model, optimizer, x = made()
    atlas.capture(model, x, optimizer=optimizer).save(tmp_path / "step.atlas")
    result = run("join", tmp_path / "step.atlas", PATH, "-o", tmp_path / "joined.json")
    assert result.exit_code == 0, result.output
    assert "ops joined to profiled_step.json.gz, step 3" in result.output
    assert Graph.load(tmp_path / "joined.json").scopes["up"].device_time_ns == 32_750
    found = json.loads(run("join", tmp_path / "step.atlas", PATH, "--step", "2", "--json").stdout)["join"]
    assert found["step"] == 2
    assert found["modules"]["up"] == 32_750
    result = run("join", tmp_path / "step.atlas", tmp_path / "step.atlas")
    assert result.exit_code == 2
    assert "not a profiler's trace" in result.output


def test_a_rank_is_added_before_the_whole_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "net.py").write_text("import torch\nnet = torch.nn.Linear(4, 2)\n")
    result = run("capture", f"{tmp_path}/net.py:net", "--inputs", "1,4", "--output", tmp_path / "step.trace.json")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "step-rank1.trace.json").is_file()

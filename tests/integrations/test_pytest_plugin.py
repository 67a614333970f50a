"""The pytest plugin in real runs of pytest: what fails, what is written, what is reported, what strangers pay."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import children
import pytest
import torch
from torch import nn

import torchatlas as atlas
import torchatlas.integrations.guard
import torchatlas.integrations.outputs
import torchatlas.types  # pytester forgets modules that are first imported within it; torch's must not be

pytest_plugins = "pytester"
TESTS = """
import os

import pytest
import torch
from torch import nn

WIDTH = int(os.environ.get("WIDTH", 16))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4), *[nn.Softmax(-1)] * (WIDTH > 16))


def test_forward(atlas_guard):
    atlas_guard.unchanged(net().requires_grad_(False), torch.ones(3, 8))


@pytest.mark.parametrize("size", [2, 3])
def test_step(atlas_guard, size):
    atlas_guard.within(
        net(), torch.ones(size, 8), optimizer=torch.optim.SGD, flops="+1%", parameters=0, peak_bytes="+2%", ops="+0"
    )


def test_without():
    assert WIDTH
"""
OPTIONS = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "pytest_torchatlas"]
SNAPSHOTS = ["test_forward.txt", "test_step[2].txt", "test_step[3].txt"]


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the runs below will: pytester would forget it after each, and torch cannot be imported twice."""
    model = nn.Linear(2, 2)
    graph = atlas.capture(model, torch.ones(1, 2), optimizer=torch.optim.SGD, native=False)
    atlas.cost(graph)
    graph.save(tmp_path_factory.mktemp("warm") / "page.html")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_models=TESTS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess(*OPTIONS, *arguments)


def snapshots(project: pytest.Pytester) -> dict[str, str]:
    return {path.name: path.read_text() for path in (project.path / "__atlas__").rglob("*.txt")}


def test_a_missing_snapshot_fails_and_is_written_only_when_asked(project: pytest.Pytester) -> None:
    result = run(project)
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E*there is no snapshot __atlas__/test_models/test_forward.txt.",
            "E*To write it: pytest --atlas-update test_models.py::test_forward",
        ]
    )
    assert snapshots(project) == {}
    result = run(project, "--atlas-update")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*snapshots of torchatlas*", "3 written"])
    written = snapshots(project)
    assert sorted(written) == SNAPSHOTS
    result = run(project)
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*- snapshots of torchatlas -*")
    run(project, "--atlas-update").stdout.no_fnmatch_line("[0-9] written")
    assert snapshots(project) == written


def test_a_snapshot_reads_well(project: pytest.Pytester) -> None:
    run(project, "--atlas-update")
    head, digest, total, empty, *modules = snapshots(project)["test_forward.txt"].splitlines()
    minor = ".".join(torch.__version__.split(".")[:2])
    assert head.startswith(f"torchatlas snapshot 1, torchatlas {atlas.__version__[:3]}, torch {minor}. ")
    assert re.fullmatch("hash [0-9a-f]{64}", digest)
    assert total == "total ops=5 parameters=212 macs=576 flops=1,152 peak_bytes=1,328"
    assert empty == ""
    assert [re.sub(r" id=\w{8}$", "", line) for line in modules] == [
        "(root) Sequential in=float32[3,8] out=float32[3,4]",
        "0 Linear in=float32[3,8] out=float32[3,16] forward=2:t,addmm parameters=144 flops=768",
        "1 ReLU in=float32[3,16] out=float32[3,16] forward=1:relu",
        "2 Linear in=float32[3,16] out=float32[3,4] forward=2:t,addmm parameters=68 flops=384",
    ]


def test_a_changed_model_fails_with_its_modules_and_a_page(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(project, "--atlas-update")
    monkeypatch.setenv("WIDTH", "32")
    result = run(project, "--atlas-report", "pages")
    result.assert_outcomes(failed=3, passed=1)
    result.stdout.fnmatch_lines(
        [
            "E*the graph is not that of __atlas__/test_models/test_forward.txt",
            "E*  parameters: 212 -> 420 (+98 %)",
            "E*  ~ 0 Linear: out float32[[]3,16] -> float32[[]3,32], parameters 144 -> 288 (+100 %), flops *",
            "E*  + 3 Softmax in=float32[[]3,4] out=float32[[]3,4] forward=1:_softmax",
            f"E*to look at it: {project.path}/pages/test_models.test_forward.html",
            "E*If this is meant, *: pytest --atlas-update test_models.py::test_forward",
            "E*out of bounds:",
            "E*  flops='+1%': * -> * (+100 %); exactly 2,688 -> 5,376",
            "E*  parameters=0: 212 -> 420 (+98 %)",
        ]
    )
    assert "guard.py" not in result.stdout.str()  # the traceback ends in the test
    page = atlas.load(project.path / "pages" / "test_models.test_forward.html")
    assert page.scopes["3"].type == "Softmax"
    assert len(list((project.path / "pages").iterdir())) == 3
    run(project, "--atlas-update").assert_outcomes(passed=4)
    run(project).assert_outcomes(passed=4)


def test_pages_lie_in_pytests_own_folder_by_default(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project, "--atlas-update", "-k", "forward")
    monkeypatch.setenv("WIDTH", "32")
    result = run(project, "-k", "forward", "--basetemp", str(project.path / "base"))
    found = re.search(r"to look at it: (\S+\.html)", result.stdout.str())
    assert found
    assert Path(found[1]).is_relative_to(project.path / "base")
    assert Path(found[1]).stat().st_size > 10_000


def test_unused_snapshots_are_reported_and_removed(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project, "--atlas-update")
    folder = project.path / "__atlas__" / "test_models"
    text = (folder / "test_forward.txt").read_text()
    old, foreign = folder / "test_old.txt", folder / "notes.txt"
    gone = project.mkdir("__atlas__/test_gone") / "test_a.txt"
    old.write_text(text)
    gone.write_text(text)
    foreign.write_text("mine")
    for arguments in (
        ["-k", "forward"],
        ["test_models.py::test_forward"],
        ["--deselect", "test_models.py::test_forward"],
    ):
        result = run(project, *arguments)  # others may use it
        result.stdout.no_fnmatch_line("*test_old.txt*")
    run(project, "test_models.py").stdout.no_fnmatch_line(f"*{gone}")  # it was not asked for
    monkeypatch.setenv("WIDTH", "32")
    run(project).stdout.no_fnmatch_line("*test_old.txt*")  # a test that failed may not have come to it
    monkeypatch.delenv("WIDTH")
    result = run(project)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["2 that no test uses; pytest --atlas-update removes them:", f"*{gone}", f"*{old}"])
    assert old.exists()
    run(project, "--atlas-update").stdout.fnmatch_lines(["2 removed, which no test uses:"])
    assert sorted(snapshots(project)) == ["notes.txt", *SNAPSHOTS]
    assert not gone.parent.exists()


@pytest.mark.child
def test_several_processes_write_and_report_the_same(project: pytest.Pytester) -> None:
    """Also: other processes make the same files, byte for byte."""
    pytest.importorskip("xdist")
    run(project, "--atlas-update")
    alone = snapshots(project)
    folder = project.path / "__atlas__" / "test_models"
    (folder / "test_old.txt").write_text(alone["test_forward.txt"])
    (folder / "test_forward.txt").unlink()
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-n", "2", "--atlas-update"]
    printed = children.run(command, cwd=project.path)[0].out
    assert "1 written" in printed
    assert "1 removed, which no test uses:" in printed
    assert snapshots(project) == alone


CRASHES = """
import os

import pytest
import torch
from torch import nn


def test_first(atlas_guard):
    atlas_guard.unchanged(nn.Linear(2, 2), torch.ones(1, 2))


@pytest.mark.skipif("CRASH" not in os.environ, reason="for one run")
def test_second():
    os._exit(1)
"""


@pytest.mark.child
def test_a_process_that_crashes_costs_no_snapshot(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_crashes=CRASHES)
    run(pytester, "--atlas-update").assert_outcomes(passed=1, skipped=1)
    before = snapshots(pytester)
    assert len(before) == 1
    monkeypatch.setenv("CRASH", "1")
    command = [sys.executable, "-m", "pytest", *OPTIONS, "-n", "1", "--atlas-update"]
    printed = children.run(command, cwd=pytester.path, codes=[1])[0].out
    assert "1 failed, 1 passed" in printed
    assert "none removed: a worker" in printed
    assert snapshots(pytester) == before


def test_what_cannot_be_read_or_removed_is_left(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project, "--atlas-update")
    folder = project.path / "__atlas__" / "test_models"
    (folder / "folder.txt").mkdir()
    old = folder / "test_old.txt"
    old.write_text((folder / "test_forward.txt").read_text())
    unlink = Path.unlink

    def refused(path: Path, *rest: Any, **options: Any) -> None:
        if path.name == old.name:
            raise PermissionError(13, "Permission denied")
        unlink(path, *rest, **options)

    monkeypatch.setattr(Path, "unlink", refused)
    result = run(project, "--atlas-update")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"no test uses {old}, and it cannot be removed: Permission denied"])
    assert old.exists()


STRANGER = """
import sys

def test_nothing_of_ours_was_imported():
    assert "pytest_torchatlas" in sys.modules
    assert not {"torch", "torchatlas", "numpy"} & set(sys.modules)
"""


def test_people_who_do_not_use_it_import_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_stranger=STRANGER)
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*snapshot*")


def test_the_example_of_the_documentation_runs(pytester: pytest.Pytester) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "ci.md").read_text()
    example = re.search(r"^```python\n(import torch\n.*?)^```", page, re.S | re.M)
    assert example
    pytester.makepyfile(test_models=example[1])
    run(pytester, "--atlas-update").assert_outcomes(passed=4)
    run(pytester).assert_outcomes(passed=4)
    pytester.makepyfile(test_models=example[1].replace("16", "32").replace("clamp(min=0)", "clamp(min=0.1)"))
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(["E*out of bounds:", "E*they differ first at *", "E*only the new one runs clamp*"])


INSTALLED = """
import torchatlas

def test_torchatlas_is_imported_as_it_is(atlas_guard):
    assert "Rewriting" not in type(torchatlas.__spec__.loader).__name__
"""


def test_installed_from_a_wheel_it_loads_by_itself_and_asserts_stay(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest rewrites every package that lies in one distribution with a plugin: here one of a name of its own."""
    info = pytester.mkdir("site") / "atlas_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: atlas-test\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\npytest_torchatlas = pytest_torchatlas\n")
    (info / "RECORD").write_text("pytest_torchatlas.py,,\ntorchatlas/__init__.py,,\natlas_test-1.dist-info/RECORD,,\n")
    source = Path(atlas.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{source}")
    pytester.makepyfile(test_installed=INSTALLED)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)

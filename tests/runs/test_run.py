"""A run that was loaded: its table, plots and page, and folders that others wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import children
import pytest
from corruption import damaged
from hostile import HOSTILE, forbidden
from runs.programs_with_steps import trained

import torchatlas as atlas
from torchatlas.errors import (
    AnalysisError,
    FileFormatError,
    FileSystemError,
    InvalidInputError,
    MissingDependencyError,
    NewerVersionError,
    UnknownNameError,
)
from torchatlas.export.html import load_pages
from torchatlas.graph import Graph
from torchatlas.integrations.training_report import module_shares
from torchatlas.render.viewer.content import viewed
from torchatlas.runs import plots, run
from torchatlas.runs.run import Run
from torchatlas.runs.structure import at_level, module_level

HEAD: dict[str, Any] = {
    "type": "run",
    "format": "torchatlas-run",
    "version": 1,
    "program": "0.1.0",
    "torch": "2.13.0",
    "model": "Net",
    "every": 1,
    "keep": "structure",
    "last": 3,
    "began": 0.0,
}
MS = 1_000_000


def written(folder: Path, *lines: Any, head: dict[str, Any] = HEAD) -> Path:
    """A folder with a journal of these lines."""
    folder.mkdir(exist_ok=True)
    (folder / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    return folder


def steps(**columns: list[Any]) -> dict[str, Any]:
    return {"type": "steps", "columns": columns}


def structure(number: int, step: int, words: str = "") -> dict[str, Any]:
    return {"type": "structure", "number": number, "hash": f"{number:064x}", "step": step, "ops": 9, "words": words}


@pytest.fixture
def made(tmp_path: Path) -> Run:
    """Forty steps of figures that were chosen, not measured."""
    walls = [100 * MS] + [10 * MS] * 39
    walls[30] = 30 * MS
    columns = {
        "number": list(range(0, 400, 10)),
        "wall_ns": walls,
        "unrecorded_ns": [None] + [8 * MS] * 39,
        "structure": [0] + [1] * 19 + [2] + [1] * 19,
        "peak_bytes": [1000] * 10 + [2000] + [1000] * 29,
        "process_bytes": [5000 + at for at in range(40)],
        "loss": [2.0 - at / 40 for at in range(39)] + ["nan"],
        "finished": [True] * 39 + [False],
        "gradient_norm": [1.0] * 40,
        "gradient_norm:encoder": [0.6] * 40,
        "time_ns:encoder": [6 * MS] * 40,
        "time_ns:head": [2 * MS] * 39 + [None],
    }
    first = {name: column[:15] for name, column in columns.items()}
    rest = {name: column[15:] for name, column in columns.items()}
    lines = [structure(0, 0), structure(1, 10, "fewer ops"), steps(**first), structure(2, 200, "batch 8 -> 4")]
    end = {"type": "end", "how": "failed", "text": "step 390: ValueError: no", "ended": 9.0}
    return Run.load(written(tmp_path / "run.atlas", *lines, steps(**rest), end, head=HEAD | {"every": 10}))


def test_what_stands_out(made: Run) -> None:
    assert [row["number"] for row in made.slowest(2)] == [0, 300]
    odd = made.odd()
    assert odd.reasons is not None
    why = dict(zip(odd.numbers, odd.reasons, strict=True))
    assert why == {
        0: "structure 0, of 1 of 40 steps",
        100: "peak of 1.95 KiB; 1000 B is usual",
        200: "structure 2, of 1 of 40 steps: batch 8 -> 4",
        300: "took 30.0 ms; 10.0 ms is usual",
        390: "loss is nan; did not end",
    }
    assert odd.numbers == [390, 0, 200, 100, 300]  # what ended it before what was slow
    assert made.changes == {
        10: "fewer ops",
        200: "batch 8 -> 4",
        210: "structure 1 again, first met in step 10",
    }
    text = str(made)
    assert "run of Net: 40 steps recorded" in text
    assert "a step takes 10.0 ms while recorded (median of 39), 8.00 ms without recording" in text
    assert "note: ended early at step 390: ValueError: no" in text
    assert "20 steps in between are left out" in str(made.steps)
    assert "run of Net" in made._repr_html_()
    with pytest.raises(UnknownNameError, match="wall_ns"):
        made.steps["wall"]


def test_of_many_odd_steps_those_are_printed_that_say_most(tmp_path: Path) -> None:
    slow = [at % 40 == 39 for at in range(2000)]
    columns = {"number": [*range(2000)], "structure": [0] * 2000, "wall_ns": [(9 if each else 1) * MS for each in slow]}
    losses = ["nan" if at == 1000 else 1.0 for at in range(2000)]
    odd = Run.load(written(tmp_path / "run.atlas", structure(0, 0), steps(**columns, loss=losses))).odd()
    assert len(odd) == 51
    assert odd.numbers[0] == 1000
    assert "loss is nan" in str(odd)
    assert "31 steps that stand out less are left out" in str(odd)


def test_what_a_step_takes_is_that_of_finished_steps(tmp_path: Path) -> None:
    """An exception after a step of 113 ms leaves a rest of 1 ms, which is no step."""
    columns = {"number": [0, 1], "wall_ns": [113 * MS, MS], "finished": [True, False], "time_ns:a": [60 * MS, MS // 2]}
    found = Run.load(written(tmp_path / "run.atlas", steps(**columns)))
    assert "a step takes 113 ms while recorded (median of 1)" in str(found)
    assert found.to_dict()["median_wall_ns"] == 113 * MS
    assert "113 ms a step (median of 1, " in found.plot("time").svg
    assert "60.0 ms in ops a step (median of 1); " in found.plot("modules").svg
    assert [share.time_ns for share in module_shares(found, None)] == [60 * MS]
    columns |= {"finished": [False, False]}
    none = Run.load(written(tmp_path / "none.atlas", steps(**columns)))
    assert "a step takes" not in str(none)
    assert none.to_dict()["median_wall_ns"] is None
    assert "no step was finished" in none.plot("time").svg
    assert "unfinished; a: 100%" in none.plot("modules").svg


def test_tables_for_others(made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    frame = made.to_pandas()
    assert len(frame) == 40
    assert str(frame["wall_ns"].dtype) == "Int64"
    assert str(frame["finished"].dtype) == "boolean"
    assert frame["unrecorded_ns"].isna().tolist()[:2] == [True, False]
    again = pandas.read_parquet(made.save(tmp_path / "steps.parquet"))
    assert again["loss"].tolist()[:39] == frame["loss"].tolist()[:39]
    assert made.save(tmp_path / "steps.csv").read_text().startswith("number,wall_ns,")
    for name, error in (("steps.png", FileFormatError), ("none/steps.csv", FileSystemError)):
        with pytest.raises(error):
            made.save(tmp_path / name)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)  # which a .csv does not need
    text = made.save(tmp_path / "steps.csv").read_text()
    assert [line.partition(",")[0] for line in text.splitlines()] == ["number", *map(str, frame["number"])]
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"torchatlas\[parquet\]"):
        made.save(tmp_path / "again.parquet")


def test_a_run_without_a_step_has_the_columns_of_every_run(tmp_path: Path) -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, path=tmp_path / "run.atlas") as recorded:
        step(6)
    one = Run.load(recorded.path or "")
    none = Run.load(written(tmp_path / "empty.atlas"))
    assert set(none.columns) <= set(one.columns)
    assert set(one.columns) - set(none.columns) <= {"ops_ns", *(name for name in one.columns if ":" in name)}
    assert none.steps["loss"] == none.steps["number"] == []
    assert "0 steps recorded" in str(none)
    assert none.save(tmp_path / "none.csv").read_text().startswith("number,")
    with pytest.raises(UnknownNameError):
        none.steps["los"]


@pytest.mark.parametrize("kind", plots.KINDS)
def test_plots(kind: str, made: Run, tmp_path: Path) -> None:
    svg = made.plot(kind).svg
    said = {
        "time": "10.0 ms a step (median of 39, each timed once while recorded)",
        "modules": "8.00 ms in ops a step (median of 39); encoder: 75%",
        "memory": "process: 4.88 KiB -&gt; 4.92 KiB, 4.92 KiB at most",
        "loss": "2 in the first step, 1.05 in the last, 1.05 at least; 1 not finite",
        "gradients": "1 to 1 over all parameters",
    }[kind]
    assert said in svg
    assert "step 200: batch 8 -&gt; 4" in svg, "where the structure changed"
    assert made.plot(kind, theme="dark", width=600, height=400).png()[:4] == b"\x89PNG"
    empty = Run.load(written(tmp_path / "empty.atlas"))
    with pytest.raises(AnalysisError, match="holds no step"):
        empty.plot(kind)
    bare = Run.load(written(tmp_path / "bare.atlas", steps(number=[3])))
    with pytest.raises(AnalysisError):
        bare.plot(kind)
    with pytest.raises(InvalidInputError, match="did you mean 'loss'"):
        made.plot("los")


@pytest.mark.parametrize("kind", ["loss", "gradients"])
@pytest.mark.parametrize("number", [1e308, -1e308, 5e-324])
def test_a_number_that_no_axis_reaches(number: float, kind: str, tmp_path: Path) -> None:
    run = Run.load(written(tmp_path / "far.atlas", steps(number=[0, 1], loss=[1, number], gradient_norm=[1, number])))
    if abs(number) > 1:
        with pytest.raises(AnalysisError, match=r"goes beyond 1e\+300 in this run"):
            run.plot(kind)
    else:
        assert run.plot(kind).svg


def test_a_plot_of_more_steps_than_pixels(tmp_path: Path) -> None:
    count = 20_000
    walls = [MS] * count
    walls[12_345] = 50 * MS
    columns = {"number": list(range(count)), "wall_ns": walls, "time_ns:a": [MS] * count}
    found = Run.load(written(tmp_path / "run.atlas", steps(**columns)))
    svg = found.plot("time").svg
    assert len(svg) < 200_000
    assert "50" in svg, "the one slow step is still there"
    assert len(found.plot("modules").svg) < 200_000


def test_the_page_of_a_run(tmp_path: Path) -> None:
    model, _, step = trained()
    with atlas.recording(model, every=1, path=tmp_path / "run.atlas") as recorded:
        for size in (6, 6, 3):
            step(size)
    found = atlas.load(recorded.path or "")
    assert isinstance(found, Run)
    ((name, graph),) = load_pages(found.save(tmp_path / "run.html", step=1))
    assert name == "run.atlas"
    assert graph.metadata["step"] == 1
    (shown,) = viewed(found)  # what atlas.view(run) shows
    assert shown.graph.metadata["step"] == 2
    assert shown.extras["steps"]["shown"] == 2
    assert shown.extras["steps"]["columns"]["number"] == [0, 1, 2]
    assert shown.extras["steps"]["changes"].keys() == {2}
    with pytest.raises(FileFormatError, match="is a recorded run, which holds many graphs"):
        Graph.load(tmp_path / "run.atlas")
    with pytest.raises(AnalysisError, match="holds no step"):
        Run.load(written(tmp_path / "empty.atlas")).save(tmp_path / "empty.html")
    with pytest.raises(InvalidInputError, match="a step has a number"):
        found.graph("last")  # type: ignore[arg-type]


def test_looking_at_a_run_needs_no_torch(made: Run) -> None:
    code = f"import sys, torchatlas\nrun = torchatlas.load({str(made.path)!r})\nrun.plot()\n"
    code += "print(len(run), 'torch' in sys.modules)"
    assert children.python(code).strip() == "40 False"


def test_levels_of_modules() -> None:
    paths = ["", "stem", *(f"blocks.{at}.{part}" for at in range(12) for part in ("attention", "mlp"))]
    assert module_level(paths) == 2
    assert at_level("blocks.3.mlp", 2) == "blocks.3"
    assert module_level([f"a.{at}" for at in range(100)]) == 1
    assert module_level([]) == 1


# -- folders of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([steps(number=[0, 1], wall_ns=[1])], "differ in length"),
        ([steps(wall_ns=[1])], "have no number"),
        ([steps(number=[1, 1])], "steps 1 and 1 follow each other"),
        ([steps(number=[5]), steps(number=[4])], "steps 5 and 4 follow each other"),
        ([steps(number=[-1])], "the number -1"),
        ([steps(number=[None])], "the number None"),
        ([steps(number=[0], wall_ns=["long"])], "'long', which is no number"),
        ([steps(number=[0], wall_ns=[1.5])], "expected a whole number"),
        ([steps(number=[0], peak_bytes=[2**70])], "expected a whole number"),
        ([steps(number=[0], loss=[10**400])], "'loss' holds a number that is too large"),
        ([steps(number=[])], "have no number"),
        ([steps(number=[0], structure=[0])], "a step has structure 0, and there are 0"),
        ([steps(number=[0], **{"": [1]})], "line 2"),
        ([steps(number=[0], loss=[[1]])], "line 2"),
        ([structure(3, 0)], "structure 3 stands where 0 is due"),
        ([structure(0, 0) | {"hash": "../../etc/passwd"}], "line 2"),
        ([HEAD], "begins a second time"),
        ([{"type": "surprise"}], "line 2"),
        ([7], "line 2"),
    ],
)
def test_a_journal_that_is_wrong(lines: list[Any], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "run.atlas", *lines)
    with pytest.raises(FileFormatError, match=words) as caught:
        Run.load(path)
    assert str(path) in str(caught.value)


def test_a_head_that_is_wrong(tmp_path: Path) -> None:
    for change, error, words in (
        ({"format": "other"}, FileFormatError, "its format is 'other'"),
        ({"version": 2}, NewerVersionError, "Upgrade torchatlas"),
        ({"version": 0}, FileFormatError, "no version 0"),
        ({"every": 0}, FileFormatError, "line 1"),
    ):
        with pytest.raises(error, match=words):
            Run.load(written(tmp_path / "run.atlas", head=HEAD | change))
    (tmp_path / "run.atlas" / "run.jsonl").write_text("")
    with pytest.raises(FileFormatError, match="ended before it began"):
        Run.load(tmp_path / "run.atlas")
    (tmp_path / "run.atlas" / "run.jsonl").unlink()
    with pytest.raises(FileSystemError, match="is a folder"):
        atlas.load(tmp_path / "run.atlas")
    with pytest.raises(FileFormatError, match="is a folder, and holds no run"):
        Run.load(tmp_path / "run.atlas")
    with pytest.raises(FileSystemError, match="Cannot read"):
        Run.load(tmp_path / "none.atlas")


def test_limits_of_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "run.atlas", steps(number=[0, 1, 2], wall_ns=[1, 2, 3]))
    for name, most, words in (
        ("MOST_LINE_BYTES", 100, "more than 100 bytes"),
        ("MOST_STEPS", 2, "more than 2 steps"),
        ("MOST_COLUMNS", 1, "more than 1 columns"),
        ("MOST_NUMBERS", 5, "more than 5 numbers"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(run.journal, name, most)
            with pytest.raises(FileFormatError, match=words):
                Run.load(path)


@pytest.mark.parametrize("rare", [2, 60])
def test_rare_structures_are_found_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rare: int) -> None:
    of_steps = [*range(rare), *[rare] * 400 * rare]
    met = [structure(number, min(number, rare)) for number in range(rare + 1)]
    path = written(tmp_path / "run.atlas", *met, steps(number=[*range(len(of_steps))], structure=of_steps))
    found = Run.load(path)
    asked: list[str] = []
    column = Run._column
    monkeypatch.setattr(Run, "_column", lambda run, name: asked.append(name) or column(run, name))
    assert found.odd().numbers == [*range(rare)]
    assert asked.count("structure") == 4  # for times, peaks, counts and the rare ones


def loaded_or_refused(folder: Path) -> tuple[Run | None, str]:
    try:
        return Run.load(folder), ""
    except FileFormatError as error:
        return None, str(error)


def test_a_damaged_journal_is_refused_or_sound(made: Run, tmp_path: Path) -> None:
    data = (made.path / "run.jsonl").read_bytes()
    folder = tmp_path / "damaged.atlas"
    folder.mkdir()
    loaded = 0
    for other in damaged(data, seed=0, count=200):
        (folder / "run.jsonl").write_bytes(other)
        found, refusal = loaded_or_refused(folder)
        if found is None:
            assert str(folder) in refusal
            continue
        loaded += 1
        assert str(found)
        _ = found.odd(), found.changes, found.structures
        assert all(len(column) == len(found) for column in found.columns.values())
    assert loaded > 20
    cut = data[: data.rindex(b'{"type": "end"') + 20]  # killed while writing the last line
    (folder / "run.jsonl").write_bytes(cut)
    assert len(Run.load(folder)) == 40
    assert Run.load(folder).ended == ""


def test_texts_of_others_are_made_safe(tmp_path: Path) -> None:
    columns = {"number": list(range(40)), f"time_ns:{HOSTILE}": [MS] * 40, "structure": [0] * 39 + [1]}
    columns |= {"loss": [1.0] * 40, "wall_ns": [MS] * 40, HOSTILE: [1.0] * 40}
    lines = [structure(0, 0, HOSTILE), structure(1, 39, HOSTILE), {"type": "note", "text": HOSTILE}]
    found = Run.load(written(tmp_path / "run.atlas", *lines, steps(**columns), head=HEAD | {"model": HOSTILE}))
    for text in (str(found), repr(found), str(found.odd()), str(found.steps), str(found.structures[0])):
        assert not forbidden(text)
    for kind in ("time", "modules", "loss"):
        assert not forbidden(found.plot(kind).svg)
    assert "'=cmd" in found.save(tmp_path / "steps.csv").read_text()
    assert math.isfinite(found.steps["loss"][0] or 0)

"""The command line: what it prints where, and with which exit code it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import children
import click
import pytest
from click.testing import CliRunner, Result

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.cli._target import Target, example_inputs, parse_target
from torchatlas.errors import InvalidInputError

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        print("printed by the model")
        return self.second(self.first(x).relu())

net = Net()
number = 3

def build(): return Net()
def pair(): return Net(), (torch.randn(3, 4),)
def bare_pair(): return Net(), torch.randn(3, 4)
def triple(): return Net(), (), {"x": torch.randn(3, 4)}
def program(): Net()(torch.randn(2, 4)).sum().backward()
def product(a, b): return a @ b
def broken(): Net()(torch.randn(2, 5))
"""
SCRIPT = """
import os, subprocess, sys
import torch
import neighbour
print("arguments", sys.argv[1:], __name__, neighbour.NAME, flush=True)
subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
x = torch.randn(3, 3)
(x @ x).sum()
if "--fail" in sys.argv:
    torch.mm(x, torch.randn(2, 2))
if "--exit" in sys.argv:
    sys.exit(7)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_models.py").write_text(MODELS)
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "neighbour.py").write_text("NAME = 'neighbour'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_models", raising=False)
    monkeypatch.delitem(sys.modules, "neighbour", raising=False)
    return tmp_path


def run(*arguments: str) -> Result:
    """Run the command line; whatever it does, argv, path and modules are afterwards as before."""
    argv, path, main_module = sys.argv, list(sys.path), sys.modules["__main__"]
    result = CliRunner().invoke(main, list(arguments))
    assert sys.argv is argv
    assert sys.path == path
    assert sys.modules["__main__"] is main_module
    sys.modules.pop("cli_models", None)
    sys.modules.pop("neighbour", None)
    return result


def json_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def test_verbs_are_the_files_of_the_folder() -> None:
    files = {p.stem for p in Path(sys.modules["torchatlas.cli"].__path__[0]).glob("[!_]*.py")}
    assert {"capture", "demo", "summary"} <= files
    assert set(main.list_commands(click.Context(main))) == files  # type: ignore[attr-defined]
    for verb in files:
        text = run(verb, "--help").stdout
        assert "--json" in text
        assert "--traceback" in text


def test_version_and_unknown_verb() -> None:
    assert run("--version").stdout == f"torchatlas {atlas.__version__}\n"
    assert run("explode").exit_code == 2


# -- capture: models and functions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "addmm"),
    [
        (["cli_models:net", "--inputs", "3,4"], 2),
        (["cli_models:Net", "--inputs", "3,4"], 2),
        (["cli_models:build", "--inputs", "x=3,4"], 2),
        (["--inputs", "3,4", "cli_models.py:net"], 2),
        (["cli_models:pair"], 2),
        (["cli_models:bare_pair"], 2),
        (["cli_models:triple"], 2),
        (["cli_models:program"], 2),
        (["cli_models:product", "--inputs", "2,3", "--inputs", "b=float64:3,2"], None),
        (["cli_models:Net", "--inputs", "3,4", "--fake"], 2),
        (["cli_models:build", "--inputs", "3,4", "--fake"], 2),
        (["cli_models:pair", "--fake"], 2),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_targets(arguments: list[str], addmm: int | None, folder: Path) -> None:
    result = run("capture", *arguments, "--output", "graph.json", "--json")
    if addmm is None:  # float32 times float64: the program's own failure
        assert result.exit_code == 1
        assert "same dtype" in result.stderr
        return
    content = json_of(result)
    graph = atlas.load(folder / "graph.json")
    assert content["output"] == "graph.json"
    assert content["summary"]["total_nodes"] == len(graph)
    assert len(graph.where(operation="addmm")) == addmm
    assert "printed by the model" in result.stderr


def test_a_function_of_the_inputs_is_captured_as_it_is() -> None:
    summary = json_of(run("capture", "cli_models:product", "--inputs", "2,3", "--inputs", "b=3,2", "--json"))["summary"]
    assert summary["operation_types"] == {"matmul": 1}


def test_backward_and_optimizer() -> None:
    arguments = ["capture", "cli_models:net", "--inputs", "3,4", "--json"]
    assert list(json_of(run(*arguments))["summary"]["operations_by_phase"]) == ["forward"]
    assert "backward" in json_of(run(*arguments, "--backward"))["summary"]["operations_by_phase"]
    assert "optimizer" in json_of(run(*arguments, "--optimizer", "AdamW"))["summary"]["operations_by_phase"]


@pytest.mark.parametrize("target", ["net", "pair"])
def test_warm_ups_and_repeats(target: str, folder: Path) -> None:
    inputs = ["--inputs", "3,4"] if target == "net" else []
    runs = ["--warmup", "1", "--repeat", "3"]
    result = run("capture", f"cli_models:{target}", *inputs, *runs, "--output", "graph.atlas")
    shown = " ".join(result.stdout.split())
    assert all(f"{what} (median of 3 ±" in shown for what in ("in operations", "eager", "while recording"))
    graph = atlas.load(folder / "graph.atlas")
    assert graph.timing is not None
    assert (graph.timing.warmup, graph.timing.runs, len(graph.timing.eager_ns)) == (1, 3, 3)
    times = json_of(run("summary", "graph.atlas", "--json"))["summary"]["times"]
    assert (times["warmup"], times["operations"]["runs"], times["eager"]["runs"]) == (1, 3, 3)
    other = run("table", "graph.atlas", "--repeat", "3")
    assert (other.exit_code, "--repeat is for models that are run now" in other.stderr) == (2, True)


@pytest.mark.parametrize("verb", [["table"], ["draw", "-o", "graph.svg"], ["partition", "--json"]], ids=str)
def test_verbs_of_targets_repeat(verb: list[str], folder: Path) -> None:
    result = run(*verb, "cli_models:net", "--inputs", "3,4", "--warmup", "1", "--repeat", "3")
    assert result.exit_code == 0, result.output
    shown = (folder / "graph.svg").read_text() if "draw" in verb else result.stdout
    assert ('"runs": 3' if "--json" in verb else "median of 3 ±") in shown


def test_capture_prints_the_summary_and_where_it_went() -> None:
    result = run("capture", "cli_models:net", "--inputs", "3,4", "-o", "graph.json")
    assert result.exit_code == 0
    assert "Graph of a run: Net" in result.stdout
    assert result.stdout.endswith("written: graph.json\n")
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cli_models"], "neither module:callable"),
        (["nowhere.py"], "There is no file nowhere.py"),
        (["nowhere.py:net"], "There is no file nowhere.py"),
        (["no_such_module:net"], "no module 'no_such_module'"),
        (["cli_models:nett"], "did you mean 'net'"),
        (["cli_models:number"], "is of type int"),
        (["cli_models:net", "--inputs", "3;4"], "[NAME=][DTYPE:]SHAPE"),
        (["cli_models:net", "--inputs", "float99:3"], "[NAME=][DTYPE:]SHAPE"),
        (["cli_models:net", "--inputs", "3,4", "--optimizer", "Adamm"], "did you mean Adam"),
        (["cli_models:net", "--inputs", "3,4", "--output", "graph.xyz"], "no format is written"),
        (["cli_models:net", "--inputs", "3,4", "--output", "missing/graph.json"], "does not exist"),
        (["cli_models:net", "--inputs", "3,4", "--values", "all", "--output", "g.json"], "g.json holds no values"),
        (["cli_models:net", "--inputs", "3,4", "--values", "replay", "--output", "g.html"], "g.html holds no values"),
        (["--values", "stats", "--output", "g.svg", "script.py"], "g.svg holds no values"),
        (["cli_models:net"], "missing a required argument"),
        (["cli_models:product"], "--inputs"),
        (["cli_models:program", "--inputs", "3"], "nowhere to go"),
        (["cli_models:program", "--backward"], "--backward is for models"),
        (["cli_models:net", "extra"], "takes no arguments"),
        (["--fake", "script.py"], "--fake is for models"),
        (["--repeat", "3", "script.py"], "--repeat is for models"),
        (["cli_models:program", "--warmup", "1"], "--warmup is for models"),
        (["cli_models:net", "--inputs", "3,4", "--fake", "--repeat", "3"], "repeat=3 is for times, and fake=True"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_our_errors_are_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    result = run("capture", *arguments)
    assert result.exit_code == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: ")
    assert says in line
    assert "Traceback" not in result.stderr
    assert result.stdout in ("", "printed by the model\n")


def test_files_that_hold_values(folder: Path) -> None:
    for options in (["stats", "--output", "g.html"], ["replay", "--output", "g.atlas"]):
        assert run("capture", "cli_models:net", "--inputs", "3,4", "--values", *options).exit_code == 0
    assert atlas.load("g.atlas").recorded
    assert (folder / "g.html").is_file()  # it shows their statistics


def test_a_failing_model_ends_with_1_and_its_place() -> None:
    result = run("capture", "cli_models:net", "--inputs", "3,5")
    assert result.exit_code == 1
    assert "mat1 and mat2 shapes cannot be multiplied" in result.stderr
    assert "aten.addmm.default in first at" in result.stderr
    assert "Traceback" not in result.stderr
    shown = run("capture", "cli_models:net", "--inputs", "3,5", "--traceback")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("Traceback (most recent call last):")
    assert "mat1 and mat2 shapes cannot be multiplied" in shown.stderr


def test_errors_as_json_too() -> None:
    result = run("capture", "cli_models:nett", "--json")
    assert json.loads(result.stdout) == {
        "error": "InvalidInputError",
        "message": "cli_models has no 'nett'; did you mean 'net'?",
    }
    assert result.exit_code == 2


def test_a_failing_function_keeps_what_was_recorded(folder: Path) -> None:
    result = run("capture", "cli_models:broken", "--output", "partial.json")
    assert result.exit_code == 1
    assert "nodes were recorded before and are in partial.json" in result.stderr
    assert "aten.addmm.default in" in result.stderr
    assert len(atlas.load(folder / "partial.json")) > 0


def test_a_missing_import_of_the_module_is_its_own_failure(folder: Path) -> None:
    (folder / "needy.py").write_text("import surely_not_installed")
    result = run("capture", "needy:net")
    assert result.exit_code == 1
    assert "ModuleNotFoundError: No module named 'surely_not_installed'" in result.stderr


# -- capture: scripts -------------------------------------------------------------------------------------------------


def test_a_script_gets_its_own_arguments(folder: Path) -> None:
    result = run("capture", "--output", "graph.json", "script.py", "--json", "--lr", "0.1")
    assert result.exit_code == 0
    assert "arguments ['--json', '--lr', '0.1'] __main__ neighbour" in result.stdout
    assert "Graph of a run" in result.stdout
    graph = atlas.load(folder / "graph.json")
    assert [node.name for node in graph] == ["randn", "mm", "sum"]
    assert graph["mm"].source is not None
    assert graph["mm"].source.text == "(x @ x).sum()"


def test_a_scripts_exit_code_is_ours() -> None:
    result = run("capture", "script.py", "--exit")
    assert result.exit_code == 7
    assert "Graph of a run" in result.stdout


def test_a_failing_script_shows_its_own_traceback_and_keeps_the_graph(folder: Path) -> None:
    result = run("capture", "--output", "graph.json", "script.py", "--fail")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "torch.mm(x, torch.randn(2, 2))" in result.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in result.stderr
    assert "torchatlas" not in result.stderr
    assert "4 nodes were recorded before and are in graph.json" in result.stderr
    assert len(atlas.load(folder / "graph.json")) == 4


def test_a_failing_script_as_json() -> None:
    result = run("capture", "--json", "script.py", "--fail")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert content["failure"].startswith("RuntimeError: ")
    assert "mat1" in content["failure"]
    assert content["summary"]["total_nodes"] == 4


def test_a_real_process_prints_json_alone() -> None:
    program = [sys.executable, "-c", "from torchatlas.cli import main; main()", "capture", "--json", "script.py"]
    (printed,) = children.run(program)
    assert json.loads(printed.out)["summary"]["total_operations"] == 3
    assert "printed by a child" in printed.err


# -- summary and demo -------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(folder: Path) -> Path:
    import torch

    path = folder / "saved.json"
    atlas.capture(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.randn(1, 2), backward=True).save(path)
    return path


def test_summary_of_a_file(saved: Path) -> None:
    text = run("summary", str(saved)).stdout
    assert "Graph of a run: Sequential" in text
    assert "slowest operations" in text
    assert "slowest operations" not in run("summary", str(saved), "--top", "0").stdout
    assert "Linear" not in run("summary", str(saved), "--depth", "0").stdout
    content = json_of(run("summary", str(saved), "--json"))
    assert content["file"] == str(saved)
    assert content["summary"]["total_nodes"] == len(atlas.load(saved))


def test_summary_needs_no_torch(saved: Path) -> None:
    program = (
        "import sys\nfrom torchatlas.cli import main\ntry: main()\n"
        "finally: assert 'torch' not in sys.modules, 'torch was imported'"
    )
    children.python(program, "summary", str(saved))


def test_summary_of_what_is_no_graph(folder: Path) -> None:
    (folder / "broken.json").write_text("{")
    for name, says in (("nothing.json", "Cannot read"), ("broken.json", "broken.json"), ("script.py", "is a script")):
        result = run("summary", name)
        assert result.exit_code == 2
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_the_demo(folder: Path) -> None:
    result = run("demo", "--output", str(folder))
    assert result.exit_code == 0, result.output
    assert "Graph of a run: TinyGPT" in result.stdout
    for phase in ("forward", "backward", "optimizer"):
        assert phase in result.stdout
    one, two = (atlas.load(folder / f"torchatlas-demo.{suffix}") for suffix in ("atlas", "json"))
    assert one.identical(two)
    assert json_of(run("demo", "--output", str(folder), "--json"))["summary"]["total_nodes"] == len(one)
    assert run("demo", "--output", "missing").exit_code == 2


# -- the words of the command line ------------------------------------------------------------------------------------


def test_targets_are_parsed() -> None:
    assert parse_target("package.module:Model.build") == Target("package.module", "Model.build")
    assert parse_target("script.py") == Target("script.py", None)
    assert parse_target("script.py:main") == Target("script.py", "main")
    assert parse_target(str(Path("script.py").resolve())).is_script


def test_inputs_are_the_same_every_time() -> None:
    import torch

    state = torch.get_rng_state()
    texts = ["2,3", "int64:2,16", "mask=bool:4", "s=float16:", "bfloat16:1", "complex64:2"]
    args, kwargs = example_inputs(texts, fake=False)
    again, _ = example_inputs(texts, fake=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert [(list(a.shape), a.dtype) for a in args] == [
        ([2, 3], torch.float32),
        ([2, 16], torch.int64),
        ([1], torch.bfloat16),
        ([2], torch.complex64),
    ]
    assert all(map(torch.equal, args, again))
    assert set(args[1].unique().tolist()) == {0, 1}
    assert kwargs["mask"].dtype is torch.bool
    assert kwargs["s"].shape == ()
    assert example_inputs(["2,3"], fake=True)[0][0].device.type == "meta"
    with pytest.raises(InvalidInputError):
        example_inputs(["2,,3"], fake=False)


# -- old spellings ----------------------------------------------------------------------------------------------------


def test_old_options_work_and_say_what_they_are_called_now(folder: Path) -> None:
    assert run("capture", "cli_models:net", "--inputs", "3,4", "--output", "graph.json").exit_code == 0
    result = run("compare", "graph.json", "graph.json", "--most", "3")
    assert result.exit_code == 0
    assert "--most is now called --top" in result.stderr
    result = run("pipeline", "graph.json", "--memory-limit", "1GiB", "--json")
    assert json_of(result)["limit_bytes"] == 2**30
    assert "--memory-limit is now called --limit" in result.stderr
    assert "--most" not in run("compare", "--help").stdout


def test_a_verb_ends_quietly_when_nobody_reads_any_more() -> None:
    """As `torchatlas learn | head -1` does."""
    command = [sys.executable, "-m", "torchatlas", "learn"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


# -- compare --fail-on -------------------------------------------------------------------------------------------------


def two_graphs() -> None:
    for name, target in (("one", "cli_models:pair"), ("two", "cli_models:build")):
        arguments = [] if name == "one" else ["--inputs", "6,4"]
        assert run("capture", target, *arguments, "--output", f"{name}.atlas").exit_code == 0


def test_compare_ends_with_3_if_a_condition_holds() -> None:
    two_graphs()
    compare = ["compare", "one.atlas", "two.atlas"]
    assert run(*compare).exit_code == 0
    kept = run(*compare, "--fail-on", "flops>+100%", "--fail-on", "parameters!=+0")
    assert (kept.exit_code, kept.stderr) == (0, "")
    broken = run(*compare, "--fail-on", "flops>+99%", "--fail-on", "structure", "--fail-on", "ops>+1")
    assert broken.exit_code == 3
    assert [line.partition(": ")[0] for line in broken.stderr.splitlines()] == [
        "--fail-on flops>+99%",
        "--fail-on structure",
    ]
    as_json = run(*compare, "--fail-on", "flops>+99%", "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["violations"][0]["condition"] == "flops>+99%"
    assert "violations" not in json.loads(run(*compare, "--json").stdout)


def test_compare_refuses_conditions_it_cannot_read_or_judge(tmp_path: Path) -> None:
    wrong = run("compare", "missing.atlas", "cli_models:broken", "--fail-on", "flops>1%")
    assert wrong.exit_code == 2
    assert "need a sign" in wrong.stderr  # before anything was read or run
    two_graphs()
    unjudged = run("compare", "one.atlas", "two.atlas", "--fail-on", "time>+1%")
    assert unjudged.exit_code == 2
    assert "Capture with repeat=10" in unjudged.stderr
    failed = run("compare", "one.atlas", "cli_models:broken", "--fail-on", "structure")
    assert failed.exit_code == 1


def test_compare_prints_markdown() -> None:
    two_graphs()
    result = run("compare", "one.atlas", "two.atlas", "--markdown", "--fail-on", "flops>+1%")
    assert result.exit_code == 3
    graphs = [atlas.load(name) for name in ("one.atlas", "two.atlas")]
    assert result.stdout == atlas.compare(*graphs).to_markdown(title="one.atlas → two.atlas", conditions=["flops>+1%"])
    both = run("compare", "one.atlas", "two.atlas", "--markdown", "--json")
    assert both.exit_code == 2
    assert "contradict" in both.stderr

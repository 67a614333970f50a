"""Mistakes of a tired user: each answer says what happened and one next step. A row is a call and its answer."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import children
import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.errors import AtlasError, InvalidInputError

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.ids(x))

def build(): return Net()
"""


class Reads(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum().item() > 0 else -x


class Lazy(nn.Module):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        return (x * number for number in range(3))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(4, 2)


MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
X = torch.randn(3, 4)


@pytest.fixture(scope="module")
def graph() -> atlas.Graph:
    return atlas.capture(MODEL, X, backward=True)


@pytest.fixture(scope="module")
def traced() -> atlas.TracedModel:
    return atlas.trace(MODEL, X)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: atlas.Graph) -> Path:
    (tmp_path / "nets.py").write_text(MODELS)
    (tmp_path / "other.json").write_text("{}")
    graph.save(tmp_path / "step.atlas")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- Python ------------------------------------------------------------------------------------------------------------

Call = Callable[[Any, Any], object]  # of a graph and a traced model
ANSWERS: list[tuple[str, Call]] = [
    # keywords
    ("did you mean 'backward'?", lambda g, t: atlas.capture(MODEL, X, backwards=True)),
    ("did you mean 'optimizer'?", lambda g, t: atlas.capture(MODEL, X, optimiser=torch.optim.SGD)),
    ("capture has backward, loss", lambda g, t: atlas.capture(MODEL, X, device="cuda")),
    ("did you mean 'dynamic_shapes'?", lambda g, t: atlas.trace(MODEL, X, dynamic_shape="auto")),
    ("did you mean 'optimizer'?", lambda g, t: atlas.checkpoint_plan(MODEL, X, limit=1, optimiser=torch.optim.SGD)),
    ("did you mean 'input_tensor'?", lambda g, t: atlas.track_computational_graph(MODEL, input=X)),
    ("did you mean 'model'?", lambda g, t: atlas.ComputationalGraphTracker(modle=MODEL)),
    ("Call it as pipeline_stages(x, stages, ...)", lambda g, t: atlas.pipeline_stages(t)),
    ("GraphPartitioner().partition(x", lambda g, t: atlas.GraphPartitioner.partition(g)),
    ("did you mean 'operation'?", lambda g, t: g.where(operaton="relu")),
    # names
    ("no module is named '7.layer'", lambda g, t: g.scopes["7.layer"]),
    ("no module is named 'nope'", lambda g, t: g.where(scope="nope")),
    ("no module is named 'nope'", lambda g, t: g.subgraph(scope="nope")),
    ("unknown phase 'backwards'; did you mean 'backward'?", lambda g, t: g.where(phase="backwards")),
    ("did you mean 'convolution'?", lambda g, t: g.where(operation_type="conv")),
    ("did you mean '1.relu'?", lambda g, t: g["rellu"]),
    ("where(operation='relu')", lambda g, t: g.where("relu")),
    ("a module by scope=", lambda g, t: g.subgraph("0")),
    ("this graph has", lambda g, t: g[9999]),
    ("did you mean 'a100-40gb' or 'a100-80gb'?", lambda g, t: atlas.cost(g, "a100")),
    ("the profile of one", lambda g, t: atlas.cost(g, torch.device("cuda"))),  # type: ignore[arg-type]
    ("did you mean 'macs'?", lambda g, t: atlas.module_bars(g, by="mac")),
    ("is no dtype", lambda g, t: atlas.compare_runs(t, "fp16", X)),
    # the wrong thing
    ("draw(atlas.capture(model, x))", lambda g, t: atlas.draw(MODEL)),  # type: ignore[arg-type]
    ("cost(model, inputs=x)", lambda g, t: atlas.cost(MODEL)),
    ("verify(atlas.capture(model, x))", lambda g, t: atlas.verify(MODEL)),  # type: ignore[arg-type]
    ("a function that captures a batch", lambda g, t: atlas.peak_for_batch(g)),
    ("a function that captures a batch", lambda g, t: atlas.peak_for_batch(MODEL)),
    ("not the class Linear", lambda g, t: atlas.recording(nn.Linear)),  # type: ignore[arg-type]
    ("Linear is a class: pass a model", lambda g, t: atlas.capture(nn.Linear, X)),
    ("ReLU is a class: pass a model", lambda g, t: atlas.capture(nn.ReLU, X)),
    ("doctor(loss, model=model)", lambda g, t: atlas.doctor(MODEL)),
    ("torchatlas doctor train.py", lambda g, t: atlas.doctor("train.py")),
    ("loss=lambda out", lambda g, t: atlas.capture(MODEL, X, loss=MODEL(X).sum())),
    ("return loss.mean()", lambda g, t: atlas.capture(MODEL, X, loss=lambda out: out)),
    ("record_backward(out.sum())", lambda g, t: atlas.record_backward(MODEL(X))),
    ("debug_backward(out.sum())", lambda g, t: atlas.debug_backward(MODEL(X))),
    ("torch.optim.AdamW, not str", lambda g, t: atlas.capture(MODEL, X, optimizer="AdamW")),
    ("a dictionary of keyword arguments", lambda g, t: atlas.capture(MODEL, kwargs=[X])),  # type: ignore[arg-type]
    ("lambda x: 2 * x", lambda g, t: t.run(X, edit={"1": 0})),
    ("Leave device= out", lambda g, t: atlas.TracedModel(MODEL, (X,), device="nowhere")),
    # inputs
    ("computes nothing until it is read", lambda g, t: atlas.capture(Lazy(), X)),
    (f"{__file__}:", lambda g, t: atlas.capture(Reads(), X, fake=True)),
    ("pass fake=True", lambda g, t: atlas.capture(on_meta(), X)),
    ("torch.as_tensor", lambda g, t: atlas.capture(MODEL, np.zeros((3, 4), np.float32))),
    ("torch.as_tensor", lambda g, t: t(np.zeros((3, 4), np.float32))),
    ("torch.randn((3, 4))", lambda g, t: atlas.capture(MODEL, (3, 4))),
    ("with a star: *inputs", lambda g, t: atlas.trace(MODEL, (X,))),
    ("input is None", lambda g, t: atlas.capture(MODEL, None)),
    ("x.long()", lambda g, t: atlas.capture(nn.Embedding(4, 3), X)),
    # numbers
    ("no number of bytes", lambda g, t: atlas.checkpoint_plan(MODEL, X, limit="24 gigs")),
    ("such as 25GB/s", lambda g, t: atlas.pipeline_stages(t, 2, bandwidth="fast")),
    ("whole number", lambda g, t: atlas.pipeline_stages(t, 2.0)),  # type: ignore[arg-type]
    ("whole number", lambda g, t: atlas.memory(g, top="3")),  # type: ignore[arg-type]
    # files
    ("times and no graph", lambda g, t: atlas.load("x.trace.json")),
    ("a file of weights", lambda g, t: atlas.load("model.pt")),
    ("did you mean 'step.atlas'?", lambda g, t: atlas.memory("stepp.atlas")),
    ("is a folder", lambda g, t: atlas.load(".")),
    ("not a graph of torchatlas", lambda g, t: atlas.load("other.json")),
    ("did you mean 'capture'?", lambda g, t: atlas.captur),
]


@pytest.mark.parametrize(("says", "call"), ANSWERS, ids=[says for says, _ in ANSWERS])
def test_a_mistake_is_answered(
    says: str, call: Call, folder: Path, graph: atlas.Graph, traced: atlas.TracedModel
) -> None:
    with pytest.raises(Exception) as caught:
        call(graph, traced)
    answer = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert says in answer, answer
    assert max(map(len, answer.splitlines())) < 500


@pytest.mark.parametrize("name", [name for name in atlas.__all__ if inspect.isfunction(getattr(atlas, name))])
def test_every_function_suggests_a_keyword(name: str) -> None:
    """The last letter of each keyword is doubled. Functions that hand keywords on to a model are in the table above."""
    function = getattr(atlas, name)
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters) or name == "load":
        return
    needed = [None for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY:
            with pytest.raises(InvalidInputError, match=f"did you mean '{each.name}'"):
                function(*needed, **{each.name + each.name[-1]: None})


def test_graphs_files_recordings_and_traces_are_taken_alike(
    folder: Path, graph: atlas.Graph, traced: atlas.TracedModel
) -> None:
    with atlas.recording(MODEL) as rec:
        MODEL(X)
    for given, same in (
        (folder / "step.atlas", graph),
        ("step.atlas", graph),
        (rec, rec.graph),
        (traced, traced.graph),
    ):
        assert atlas.cost(given).macs == atlas.cost(same).macs
        assert atlas.draw(given).boxes == atlas.draw(same).boxes
        assert str(atlas.module_table(given)) == str(atlas.module_table(same))
        assert not atlas.compare(given, same).added
    assert atlas.memory(rec).peak_bytes == atlas.memory(rec.graph).peak_bytes
    kept = atlas.capture(MODEL, X, backward=True, values="stats")
    assert list(atlas.gradient_norms(kept)) == [name for name, _ in MODEL.named_parameters()]


def test_sizes_are_text_everywhere(traced: atlas.TracedModel) -> None:
    assert atlas.GraphPartitioner(on_chip_bytes="24MB").on_chip_bytes == 24_000_000
    assert atlas.pipeline_stages(traced, 2, limit="1GiB").limit_bytes == 2**30
    assert atlas.pipeline_stages(traced, 2, bandwidth="25 GB/s").bandwidth == 25e9
    assert atlas.checkpoint_plan(MODEL, X, limit="24GB").choice.limit_bytes == 24_000_000_000


def test_a_call_that_fits_keeps_its_own_error() -> None:
    with pytest.raises(TypeError, match="mine") as caught:
        atlas.capture(lambda x: (_ for _ in ()).throw(TypeError("mine")), X)
    assert not isinstance(caught.value, AtlasError)


# -- command line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("tabel step.atlas", "did you mean 'table'?"),
        ("step.atlas", "a verb comes first: torchatlas summary step.atlas"),
        ("nets.py:build", "a verb comes first: torchatlas capture nets.py:build"),
        ("capture nets.build", "did you mean nets:build?"),
        ("capture step.atlas", "it is a saved graph"),
        ("trace nets.py:build", "give them with --inputs"),
        ("memory nets.py", "Record it first"),
        ("memory nets.py:build", "give them with --inputs"),
        ("cost stepp.atlas", "did you mean 'step.atlas'?"),
        ("view nofolder/", "There is no file or folder nofolder"),
        ("capture nets.py:build --inputs 2,3", "--inputs int64:2,16"),
        ("compare step.atlas step.atlas --fake", "it was run already"),
    ],
)
def test_a_mistyped_command_is_answered(arguments: str, says: str, folder: Path) -> None:
    result = CliRunner().invoke(main, arguments.split())
    sys.modules.pop("nets", None)
    assert result.exit_code != 0
    assert says in result.output
    assert "click" not in result.output  # nobody's line is in there


@pytest.mark.parametrize(
    "verb", ["summary", "cost", "memory", "table", "verify", "partition", "draw", "compare step.atlas"]
)
def test_verbs_take_a_model_in_place_of_a_file(verb: str, folder: Path) -> None:
    result = CliRunner().invoke(main, [*verb.split(), "nets.py:build", "--inputs", "int64:2,3"])
    assert result.exit_code == 0, result.output
    assert atlas.capture(nn.Linear(4, 2), X)["addmm"].source is not None  # lines of programs that call us are kept


def test_no_node_of_a_model_from_the_command_line_blames_click(folder: Path) -> None:
    CliRunner().invoke(main, ["capture", "nets.py:build", "--inputs", "int64:2,3", "--output", "net.atlas"])
    files = {os.path.basename(node.source.file) if node.source else None for node in atlas.load("net.atlas").nodes}
    assert files == {"nets.py", None}


# -- help and completion -----------------------------------------------------------------------------------------------

VERBS = main.list_commands(click.Context(main))


def test_help_ends_in_full_sentences() -> None:
    """Of every verb and option, at 80 columns."""
    context = click.Context(main, terminal_width=80)
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    assert "..." not in text.partition("Commands:")[2]
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {verb} ")]
        assert line.endswith("."), line
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                sentence = (option.help or "").partition("  [")[0]
                assert sentence.endswith("."), (verb, option.opts, option.help)


def test_listing_verbs_does_not_import_torch() -> None:
    """Every key press of a completion does it."""
    listed = "from torchatlas.cli import main; main(['--help'], standalone_mode=False)"
    assert children.python(f"import sys; {listed}; print('torch' in sys.modules)").strip().endswith("False")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    if shell == "bash" and "version" in result.stderr:
        pytest.skip("no bash here")
    assert result.exit_code == 0
    assert "_TORCHATLAS_COMPLETE" in result.stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("torchatlas me", "plain,memory"),
        ("torchatlas cost nets.py:b", "plain,nets.py:build"),
        ("torchatlas cost step.atlas --device a100", "plain,a100-40gb\nplain,a100-80gb"),
        ("torchatlas table st", "file,st"),
        ("torchatlas table step.atlas --bars p", "plain,parameters"),
    ],
)
def test_completions(words: str, found: str, folder: Path) -> None:
    asked = {"_TORCHATLAS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(main, [], prog_name="torchatlas", env=asked)
    assert result.stdout.strip() == found

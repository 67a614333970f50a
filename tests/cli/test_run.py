"""torchatlas run: what it prints and writes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from autograd.test_gradient_statistics import Elsewhere
from click.testing import CliRunner, Result
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.cli import main
from torchatlas.cli.run import _facts


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, object]:
        hidden = self.first(x)
        return {"logits": self.last(hidden.log()), "parts": [hidden, 3]}


@pytest.fixture(autouse=True)
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> atlas.TracedModel:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Model().eval()
    with torch.no_grad():
        model.first.weight.abs_()
        model.first.bias.abs_()
    found = atlas.trace(model, torch.rand(2, 4))
    found.save("m.atlas")
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments])


def test_it_prints_what_the_model_returns(traced: atlas.TracedModel) -> None:
    x = torch.rand(5, 4)
    safetensors.torch.save_file({"x": x}, "x.safetensors")
    result = run("m.atlas", "--data", "x.safetensors", "--node", "first", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    expected = traced(x)
    assert [each["name"] for each in facts["outputs"]] == ["output.logits", "output.parts.0", "output.parts.1"]
    assert facts["outputs"][0]["mean"] == pytest.approx(expected["logits"].double().mean().item())
    assert facts["outputs"][2]["value"] == 3
    assert [each["name"] for each in facts["values"]] == ["first.linear"]
    text = run("m.atlas", "--data", "x.safetensors").stdout
    assert "float32[5, 2]" in text
    assert "ran in" in text


def test_values_and_outputs_are_written(traced: atlas.TracedModel, tmp_path: Path) -> None:
    x = torch.rand(3, 4)
    safetensors.torch.save_file({"x": x}, "x.safetensors")
    result = run("m.atlas", "--data", "x.safetensors", "--values", "v.safetensors", "--output", "o.safetensors")
    assert result.exit_code == 0, result.output
    assert "written: v.safetensors" in result.stdout
    values, outputs = safetensors.torch.load_file("v.safetensors"), safetensors.torch.load_file("o.safetensors")
    assert torch.equal(values["first.linear"], traced.predict(x)["first.linear"].output)
    assert torch.equal(outputs["output.logits"], traced(x)["logits"])


def test_numbers_that_are_not_finite_are_found() -> None:
    safetensors.torch.save_file({"x": -100 * torch.ones(2, 4)}, "x.safetensors")
    quiet = run("m.atlas", "--data", "x.safetensors", "--json")
    assert json.loads(quiet.stdout)["outputs"][0]["not_finite"] == 4
    result = run("m.atlas", "--data", "x.safetensors", "--check-finite")
    assert result.exit_code != 0
    assert "not finite after log (aten.log.default)" in result.stderr


def test_random_inputs_by_shape() -> None:
    result = run("m.atlas", "--inputs", "7,4")
    assert result.exit_code == 0, result.output
    assert "float32[7, 2]" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.atlas"], r"m.atlas takes x ('s"),
        (["m.atlas", "--inputs", "2,5"], "this trace fixes it to 4"),
        (["m.atlas", "--inputs", "2,4", "--node", "frist"], "did you mean 'first'"),
        (["m.atlas", "--data", "nowhere.safetensors"], "nowhere.safetensors"),
        (["nowhere.atlas", "--inputs", "2,4"], "nowhere.atlas"),
        (["m.atlas", "--inputs", "2,4", "--values", "v.pt"], ".safetensors"),
    ],
)
def test_errors_say_what_is_wrong(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_results_of_a_device_without_float64_are_told() -> None:
    facts = _facts("y", torch.tensor([1.0, 3.0, float("nan")]).as_subclass(Elsewhere))
    assert (facts["not_finite"], facts["min"], facts["max"], facts["mean"]) == (1, 1.0, 3.0, 2.0)


def test_a_graph_cannot_be_run() -> None:
    atlas.capture(nn.Linear(2, 2), torch.ones(1, 2)).save("g.atlas")
    assert "no traced model" in run("g.atlas", "--inputs", "1,2").stderr


def test_a_capture_for_replay_can_be_verified(tmp_path: Path) -> None:
    (tmp_path / "replay_models.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(4, 2)\n")
    options = ["--inputs", "3,4", "--backward", "--values", "replay", "--output", "r.atlas"]
    result = CliRunner().invoke(main, ["capture", "replay_models.py:build", *options])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(main, ["verify", "r.atlas"]).exit_code == 0

"""Values written to a file as they come."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import torchatlas as atlas
from torchatlas.errors import FileSystemError, InvalidInputError
from torchatlas.execute.node_values import ValueFile


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2)).eval()


def test_values_in_a_file_are_those_of_a_run(tmp_path: Path) -> None:
    found, x = atlas.trace(model(), torch.randn(2, 4)), torch.randn(5, 4)
    kept, path = found.predict(x), tmp_path / "values.safetensors"
    values = found.predict(x, save=path)
    assert len(values) == 0
    assert torch.equal(values.output, kept.output)
    saved = safetensors.torch.load_file(path)
    assert set(saved) == set(kept) - {"output"}
    for name, tensor in saved.items():
        assert torch.equal(tensor, kept[name].output)
    assert (saved["0.linear"] < 0).any()  # before it was overwritten
    assert [item.name for item in tmp_path.iterdir()] == ["values.safetensors"]


def test_only_some_of_them_and_a_callback(tmp_path: Path) -> None:
    found, seen = atlas.trace(model(), torch.randn(2, 4)), []
    path = tmp_path / "some.safetensors"
    found.predict(torch.randn(2, 4), nodes=["2"], save=path, callback=lambda name, value: seen.append(name))
    assert set(safetensors.torch.load_file(path)) == {"2.linear"}
    assert "0.linear" in seen


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.int64).reshape(2, 3).t(),
        torch.randn(3, dtype=torch.bfloat16),
        torch.randn(2, dtype=torch.complex64).conj(),
        torch.tensor(True),
        torch.empty(0, 3),
        torch.randn(4).to(torch.float8_e4m3fn),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_every_type_comes_back(tensor: Tensor, tmp_path: Path) -> None:
    with ValueFile(tmp_path / "x.safetensors") as file:
        file.write("x", tensor)
        file.write("several", (tensor, [tensor]))
    back = safetensors.torch.load_file(tmp_path / "x.safetensors")
    assert set(back) == {"x", "several:0", "several:1:0"}
    for found in back.values():
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert torch.equal(found.view(torch.uint8) if found.dtype.itemsize == 1 else found, _comparable(tensor))


def _comparable(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def test_what_the_format_cannot_hold_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with ValueFile(path) as file:
        file.write("wide", torch.zeros(2, dtype=torch.complex128))
        file.write("sparse", torch.eye(2).to_sparse())
        file.write("number", 3)
    with safetensors.safe_open(path, "pt") as back:
        assert list(back.keys()) == []
        assert back.metadata()["left out"] == "wide: complex128, strided; sparse: float32, sparse_coo"


def test_after_an_exception_there_is_no_file(tmp_path: Path) -> None:
    def fail(name: str, value: Tensor) -> None:
        raise ZeroDivisionError

    found = atlas.trace(model(), torch.randn(2, 4))
    with pytest.raises(ZeroDivisionError):
        found.predict(torch.ones(2, 4), save=tmp_path / "x.safetensors", callback=fail)
    assert list(tmp_path.iterdir()) == []


def test_a_file_there_is_replaced_and_not_lost_before(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_text("precious")
    with pytest.raises(ZeroDivisionError), ValueFile(path):
        raise ZeroDivisionError
    assert path.read_text() == "precious"


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileSystemError, match=r"cannot write .*No such file"):
        ValueFile(tmp_path / "nowhere" / "x.safetensors")
    with pytest.raises(InvalidInputError, match=r"values are saved as \.safetensors, not 'x\.pt'"):
        ValueFile(tmp_path / "x.pt")

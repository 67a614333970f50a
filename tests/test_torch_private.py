"""One canary per private symbol of torch: when an upgrade breaks one, the failing test bears its name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchatlas
from torchatlas import torch_private
from torchatlas.canaries import CANARIES

NOT_TORCHS = {"SINCE", "TESTED", "version_can"}  # names of our own
SOURCE = Path(torchatlas.__file__).parent


@pytest.mark.parametrize("symbol", CANARIES.names())
def test_canary(symbol: str) -> None:
    CANARIES[symbol]()


def test_every_symbol_has_a_canary() -> None:
    assert set(torch_private.__all__) - NOT_TORCHS <= set(CANARIES.names())


def test_what_versions_cannot_do_is_documented() -> None:
    text = (Path(__file__).parent.parent / "docs" / "versions.md").read_text()
    section = text.partition("## What a version cannot do")[2].partition("##")[0]
    rows = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert rows == set(torch_private.SINCE)


def test_all_is_complete() -> None:
    public = {name for name in vars(torch_private) if not name.startswith("_") and name not in ("Any", "torch")}
    assert public == set(torch_private.__all__)


def imports_of(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def test_private_torch_is_imported_in_one_place() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "torch_private.py" and path.parent.name != "canaries":
            private = [name for name in imports_of(path) if name.startswith("torch.") and "._" in name]
            assert private == [], path.relative_to(SOURCE)

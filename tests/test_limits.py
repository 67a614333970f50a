"""docs/limits.md promises a test for every row: each must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = [line for line in (ROOT / "docs" / "limits.md").read_text().splitlines() if line.startswith("| ")]
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE]
ROWS = [dict(zip(("what", "how", "why", "tests"), cells, strict=True)) for cells in CELLS if cells[-1] != "shown by"]


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"][:60])
def test_every_row_is_shown_by_a_test(row: dict[str, str]) -> None:
    assert row["how"] in ("captured", "partly", "not")
    assert row["how"] == "captured" or row["why"]
    named = re.findall(r"`([\w/]+)(?:::(\w+))?`", row["tests"])
    assert named, row["tests"]
    for file, test in named:
        path = ROOT / "tests" / f"{file}.py"
        assert path.exists(), path
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert not test or test in names, f"{path.name} has no {test}"

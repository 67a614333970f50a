"""docs/limits.md promises a test for every row: each must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| (?P<what>[^|]+) \| (?P<how>[^|]+) \| (?P<why>[^|]*) \| (?P<tests>[^|]+) \|$")
ROWS = [
    found.groupdict() for line in (ROOT / "docs" / "limits.md").read_text().splitlines() if (found := ROW.match(line))
]
ROWS = [row for row in ROWS if not row["tests"].startswith(("-", "shown by"))]


def test_the_page_has_rows() -> None:
    lines = [line for line in (ROOT / "docs" / "limits.md").read_text().splitlines() if line.startswith("| ")]
    headings = [line for line in lines if line.endswith("| shown by |")]
    assert len(lines) - len(headings) == len(ROWS) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["what"][:60])
def test_every_row_is_shown_by_a_test(row: dict[str, str]) -> None:
    assert row["how"] in ("captured", "partly", "not")
    assert row["how"] == "captured" or row["why"].strip()
    named = re.findall(r"`([\w/]+)(?:::(\w+))?`", row["tests"])
    assert named, row["tests"]
    for file, test in named:
        path = ROOT / "tests" / f"{file}.py"
        assert path.exists(), path
        names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
        assert not test or test in names, f"{path.name} has no {test}"

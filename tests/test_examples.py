"""Every example runs as it stands."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import children
import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))

OWN_PROCESS = {
    "two_ranks.py",  # it talks to another process
    "what_is_wrong.py",  # it looks at all tensors there are, and other tests leave some that are no more
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if example.name in OWN_PROCESS:
        (printed,) = children.run([sys.executable, str(example)])
        assert len(printed.out.splitlines()) >= 2
        return
    runpy.run_path(str(example), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_the_page_lists_them_all() -> None:
    page = (EXAMPLES[0].parent / "README.md").read_text()
    assert [example.name for example in EXAMPLES if f"({example.name})" not in page] == []

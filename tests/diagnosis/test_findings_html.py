"""Findings as a table in notebooks: cells by their numbers, and no markup from the program."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from torchatlas.diagnosis import Finding, Findings, Where
from torchatlas.diagnosis.findings import Severity
from torchatlas.diagnosis.findings_html import running_cell
from torchatlas.graph import SourceLine

PLACE = Where("step", SourceLine("/tmp/ipykernel_1/2.py", 5, "<cell line: 1>", "optimizer.step()  # <b>"))


def test_the_table_has_what_the_text_has_and_no_markup_of_the_program() -> None:
    follows = Finding("no-gradient", "<script>w</script> gets no gradient", (), "", "")
    found = Finding("not-zeroed", "of <img>", (PLACE,), "why & so", "fix", 3, Severity.WARNING, follows=(follows,))
    html = Findings([found], ("not-zeroed",))._repr_html_()
    assert "<img>" not in html
    assert "<script>" not in html
    assert "# <b>" not in html
    for part in ("warning", "not-zeroed", "of &lt;img&gt;", "why &amp; so", "fix", "(3 times)", "so also", "1 warning"):
        assert part in html
    assert "/tmp/ipykernel_1/2.py:5" in html


def test_a_line_of_a_cell_is_named_as_ipython_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if "ipykernel" in file else None)
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    finding = Finding("not-zeroed", "w", (PLACE,), "", "")
    assert "step, Cell In[3], line 5<br>" in Findings([finding], ("not-zeroed",))._repr_html_()
    linked = Findings([finding], ("not-zeroed",), cells={PLACE.source.file: 'a"b'})._repr_html_()
    assert 'step, <a href="#cell-id=a%22b">Cell In[3], line 5</a><br>' in linked
    shell.get_parent = lambda: {"metadata": {"cellId": "f00"}}
    code = compile("made.append(running_cell())", "/tmp/ipykernel_1/7.py", "exec")
    made: list[dict[str, str]] = []
    exec(code, {"made": made, "running_cell": running_cell})
    assert made == [{"/tmp/ipykernel_1/7.py": "f00"}]
    assert running_cell() == {}  # no cell runs


def test_nothing_found_is_one_line() -> None:
    html = Findings([], ("in-place",))._repr_html_()
    assert html.endswith("<p>no fault found; looked for: in-place</p></div>")
    assert "<table" not in html

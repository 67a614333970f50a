"""A comparison -> Markdown for a pull request. Names come from anybody: each stands in a code element, where nothing is
markup, a link or a mention."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchatlas.analysis.diff import Comparison, Delta, described, recorders_differ, summary
from torchatlas.analysis.fail_on import FIGURES, Violation, per_cent
from torchatlas.escapes import clean, encodable
from torchatlas.units import format_bytes, format_count

_TITLES = {
    "flops": "FLOPs",
    "macs": "MACs",
    "parameters": "parameters",
    "ops": "operations",
    "peak_bytes": "peak memory",
}
_COLUMNS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "operations": ("ops", lambda n: f"{n:,}"),
    "macs": ("MACs", format_count),
    "parameters": ("parameters", format_count),
    "allocated_bytes": ("allocated", format_bytes),
}
_LONGEST = 160  # characters of a name or a line; a comment of GitHub holds 65,536
_UNSAFE = re.compile(r"[`|\\]")  # what may end a code span or, in a table, its cell


def comparison_markdown(
    comparison: Comparison,
    *,
    title: str = "",
    conditions: Sequence[str] = (),
    violations: Sequence[Violation] = (),
    rows: int = 20,
) -> str:
    """The summary as Markdown; see `Comparison.to_markdown`."""
    blocks = [
        f"### {code(title)}" if title else "### torchatlas compare",
        f"**{summary(comparison)}**",
        *recorders_differ(comparison),
        *_judgement(conditions, violations),
        _table(["", "before", "after", "change"], [_total(comparison, name) for name in comparison.totals]),
    ]
    if comparison.eager.before or comparison.eager.after:
        blocks.append(f"time of the program alone: {comparison.eager}")
    for report, which in ((comparison.before, "before"), (comparison.after, "after")):
        if report.uncosted:
            listed = ", ".join(f"{code(name)} ({count:,})" for name, count in report.uncosted.items())
            blocks.append(f"FLOPs and MACs {which} are at least that: without a cost formula are {listed}")
    blocks += _modules(comparison, rows)
    for name, lines in {
        "added": list(map(described, comparison.added)),
        "removed": list(map(described, comparison.removed)),
        "changed": list(map(str, comparison.changed)),
    }.items():
        if lines:
            more = [f"- and {len(lines) - rows:,} more"] if len(lines) > rows else []
            listed = "\n".join([*(f"- {code(line)}" for line in lines[:rows]), *more])
            blocks.append(_folded(f"{len(lines):,} operation{'s' * (len(lines) != 1)} {name}", listed))
    return "\n\n".join(blocks) + "\n"


def code(text: str) -> str:
    """A text in a code element, safe anywhere in Markdown, also in the cell of a table.

    A backtick would end a code span, and in a table a bar ends the cell even within one, whatever stands before it.
    So a text with such characters is an HTML element in which all but letters and digits are character references.

    >>> code("layer1.0.conv"), code("a|`b`")
    ('`layer1.0.conv`', '<code>a&#124;&#96;b&#96;</code>')
    """
    shown = encodable(clean(text))
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    if not _UNSAFE.search(shown) and shown.strip():
        return f"`{shown.strip()}`"
    return f"<code>{re.sub(r'[^A-Za-z0-9 ]', lambda match: f'&#{ord(match[0])};', shown)}</code>"


def _judgement(conditions: Sequence[str], violations: Sequence[Violation]) -> Iterator[str]:
    if violations:
        yield "Fails on:\n\n" + "\n".join(
            f"- {code(violation.condition)} {code(violation.what)}" for violation in violations
        )
    broken = {violation.condition for violation in violations}
    if passed := [condition for condition in conditions if condition not in broken]:
        yield f"Does not fail on: {', '.join(map(code, passed))}"


def _total(comparison: Comparison, name: str) -> list[str]:
    delta, text = comparison.totals[name], FIGURES[name]
    old, new = text(delta.before), text(delta.after)
    if old == new and delta.change:  # rounding hides the change
        old, new = f"{delta.before:,}", f"{delta.after:,}"
    return [_TITLES[name], old, new, _changed(delta)]


def _changed(delta: Delta) -> str:
    if delta.before is None or delta.after is None:
        return "unknown"
    return per_cent(delta.before, delta.after) if delta.change else ""


def _modules(comparison: Comparison, rows: int) -> Iterator[str]:
    differing = [
        (path, figures)
        for path, figures in comparison.modules.items()
        if path and any(figures[name].change for name in _COLUMNS if name in figures)
    ]
    if not differing:
        return
    cells = [
        [code(path), *(_cell(figures.get(name), text) for name, (_, text) in _COLUMNS.items())]
        for path, figures in differing
    ]
    table = _table(["module", *(heading for heading, _ in _COLUMNS.values())], cells[:rows])
    more = f"\n\nand {len(differing) - rows:,} more" if len(differing) > rows else ""
    yield _folded(f"{len(differing):,} module{'s' * (len(differing) != 1)} with other figures", table + more)


def _cell(delta: Delta | None, text: Callable[[float | None], str]) -> str:
    if delta is None or delta.before is None or delta.after is None:
        return "unknown"
    if not delta.change:
        return text(delta.after)
    return f"{text(delta.before)} → {text(delta.after)} ({per_cent(delta.before, delta.after)})"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines: list[Sequence[str]] = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _folded(title: str, content: Any) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"

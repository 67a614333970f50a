"""Two snapshots -> what differs, in lines for a failed test: totals, then modules added, removed and changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchatlas.analysis.fail_on import change_text, per_cent
from torchatlas.escapes import clean
from torchatlas.integrations.snapshots import ROOT, TOTALS, Snapshot

_MOST_LINES = 30  # of modules
_SAID_LAST = "id"  # it says that something differs and not what


def changes_text(before: Snapshot, after: Snapshot, *, totals: bool = True) -> str:
    """What differs, one line each; modules that differ as + (added), - (removed) and ~ (changed)."""
    differing = [name for name in TOTALS if totals and before.totals[name] != after.totals[name]]
    lines = [f"  {name}: {change_text(name, before.totals[name], after.totals[name])}" for name in differing]
    modules = list(_modules(before.modules, after.modules))
    lines += [f"  {line}" for line in modules[:_MOST_LINES]]
    if len(modules) > _MOST_LINES:
        lines.append(f"  ... and {len(modules) - _MOST_LINES:,} more modules")
    if not modules and before.hash != after.hash:
        lines.append("  every module runs the same operations; how they are joined, or the order of modules, differs")
    return "\n".join(map(clean, lines))


def _modules(before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for path in dict.fromkeys([*after, *before]):
        old, new = before.get(path), after.get(path)
        if old is None and new is not None:
            yield f"+ {_described(path, new)}"
        elif new is None and old is not None:
            yield f"- {_described(path, old)}"
        elif old is not None and new is not None and old != new:
            yield f"~ {path or ROOT} {new['class']}: {', '.join(_fields(old, new))}"


def _described(path: str, fields: Mapping[str, str]) -> str:
    shown = [f"{name}={text}" for name, text in fields.items() if name not in ("class", _SAID_LAST)]
    return " ".join([path or ROOT, fields["class"], *shown])


def _fields(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What differs in the line of a module."""
    names = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name) and name != _SAID_LAST]
    none = {"calls": "1"}  # one call is not written
    changes = [f"{name} {_pair(old.get(name) or none.get(name), new.get(name) or none.get(name))}" for name in names]
    return changes or ["the same operations with other arguments, shapes or strides"]


def _pair(old: str | None, new: str | None) -> str:
    try:
        numbers = [int((text or "0").replace(",", "")) for text in (old, new)]
    except ValueError:
        return f"{old or 'none'} -> {new or 'none'}"
    return f"{numbers[0]:,} -> {numbers[1]:,} ({per_cent(*numbers)})"

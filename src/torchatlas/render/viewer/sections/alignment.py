"""Two graphs -> which nodes of one stand for which of the other, and what changed: of the first of two documents."""

from __future__ import annotations

from typing import Any

from torchatlas.analysis.diff import compared, summary
from torchatlas.analysis.time_changes import TimeChange
from torchatlas.errors import InvalidInputError
from torchatlas.escapes import clean
from torchatlas.graph import Graph
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("alignment", "other")
def alignment(subject: Subject) -> Members:
    """`other` is the graph that this one is compared with. It has a document of its own."""
    other = subject.extras.get("other")
    if other is None:
        return {}
    if not isinstance(other, Graph):
        raise InvalidInputError(f"other= takes a Graph to compare with, not {type(other).__name__}.")
    comparison, aligned = compared(subject.graph, other, subject.extras.get("device"))
    changed = [
        [
            change.before.id,
            change.after.id,
            {clean(name): [_text(old), _text(new)] for name, (old, new) in change.what.items()},
        ]
        for change in comparison.changed
    ]
    modules = [
        {
            "path": path,
            "a": {name: delta.before for name, delta in figures.items()},
            "b": {name: delta.after for name, delta in figures.items()},
        }
        for path, figures in comparison.modules.items()
    ]
    return {
        "alignment.json": {
            "pairs": sorted(aligned.pairs),
            "changed": changed,
            "only_a": aligned.removed,
            "only_b": aligned.added,
            "modules": modules,
            "times": {path: change.verdict for path, change in comparison.times.items()},
            "time": _time_text(comparison.times[""]),
            "sentence": summary(comparison),
        }
    }


def _time_text(time: TimeChange) -> str:
    return str(time) if time.before or time.after else ""


def _text(item: Any) -> str:
    return clean(str(item))

"""The steps of a run around the step that a page shows -> their numbers by column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchatlas.errors import InvalidInputError
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject

MOST_STEPS = 100_000
_NOT_DRAWN = {"number", "start_ns", "structure", "ops", "changed", "finished", "in_full"}


@section("steps", "steps")
def steps(subject: Subject) -> Members:
    """`steps` is a mapping: "columns" {name: numbers}, "shown" the number of the step that the graph is of, "changes"
    {number: what changed in words}. Columns are of equal length; "number" and "wall_ns" are needed."""
    table = subject.extras.get("steps")
    if table is None:
        return {}
    columns = table["columns"] if isinstance(table, Mapping) and "columns" in table else None
    if not isinstance(columns, Mapping) or not {"number", "wall_ns"} <= columns.keys():
        raise InvalidInputError("steps= takes the table of a run; save its page with run.save('run.html').")
    if len({len(column) for column in columns.values()}) != 1:
        raise InvalidInputError("steps=: the columns differ in length.")
    count = len(columns["number"])
    if count > MOST_STEPS:
        subject.left_out.append(
            f"Of {count:,} steps the page shows the last {MOST_STEPS:,}. run.columns holds all of them."
        )
    last_steps = {name: column[-MOST_STEPS:] for name, column in columns.items()}
    return {
        "steps.json": {
            "shown": table.get("shown"),
            "changes": [[int(number), str(words)] for number, words in table.get("changes", {}).items()],
            "numbers": [int(number) for number in last_steps["number"]],
            "rows": [
                {"name": name, "unit": _unit(name), "values": _values(name, column)}
                for name, column in last_steps.items()
                if name not in _NOT_DRAWN and any(cell is not None for cell in column)
            ],
        }
    }


def _unit(name: str) -> str:
    """The unit that the name of a column ends with; other numbers have none."""
    return next((unit for unit in ("ns", "bytes") if name.endswith(f"_{unit}")), "")


def _values(name: str, column: Sequence[Any]) -> list[float | str | None]:
    """Numbers; None where one is not known. NaN and infinities, which JSON has not, as text: they are looked for."""
    values: list[float | str | None] = []
    for cell in column:
        if cell is None:
            values.append(None)
        elif isinstance(cell, (int, float)):
            values.append(cell if math.isfinite(cell) else str(float(cell)))
        else:
            raise InvalidInputError(f"steps=: column {name!r} holds {cell!r}, which is no number.")
    return values

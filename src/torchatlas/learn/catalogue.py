"""The lessons that come with torchatlas: those on graphs in the order of their numbers, then one for each fault."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchatlas.errors import UnknownNameError
from torchatlas.learn.lesson import Lesson, read_lesson
from torchatlas.registry import near_names

FOLDERS = {"graph": "Graphs", "doctor": "Faults that the doctor finds"}  # each with its heading in the list
_HERE = Path(__file__).parent / "lessons"


@cache
def lessons(folder: str | None = None) -> tuple[Lesson, ...]:
    """The lessons of a folder, or of all."""
    if folder is None:
        return tuple(lesson for each in FOLDERS for lesson in lessons(each))
    return tuple(read_lesson(path) for path in sorted((_HERE / folder).glob("*.md")))


def lesson_named(name: str) -> Lesson:
    """A lesson by its name, by its number in the list, or of a file of one's own that ends in .md."""
    if name.endswith(".md"):
        return read_lesson(Path(name))
    known = lessons()
    if name.isdecimal() and 1 <= int(name) <= len(known):
        return known[int(name) - 1]
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    for lesson in known:
        if lesson.name == wanted:
            return lesson
    names = [lesson.name for lesson in known]
    near = near_names(wanted, names) or [each for each in names if wanted and wanted in each][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "torchatlas learn lists them."
    raise UnknownNameError(f"There is no lesson {name!r}; {hint}")

"""What a terminal shows of a lesson: text, code, what was printed, the list of lessons; plain, or with styles."""

from __future__ import annotations

import difflib
import io
import keyword
import re
import textwrap
import token
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchatlas.escapes import clean_text
from torchatlas.learn.catalogue import FOLDERS, lessons
from torchatlas.learn.lessons_done import LessonsDone
from torchatlas.tables import Column, Printable, StyledLine, cell_len, cut, table_lines

WIDEST = 88  # cells of a line of text: longer ones are hard to read
_WORD = re.compile(r"(?:[^\s`]|`[^`]*`|`)+")  # code in backticks stays on one line
_INDENT = "    "
_CODE, _COMMENT, _STRING, _OUTPUT = "bold", "dim", "green", "cyan"


@dataclass(frozen=True)
class Piece(Printable):
    """Lines that are made when the width is known."""

    make: Callable[[int], Iterator[StyledLine]]

    def lines(self, width: int) -> Iterator[StyledLine]:
        return self.make(width)


# -- text --------------------------------------------------------------------------------------------------------------


def prose(text: str, style: str = "") -> Piece:
    """Paragraphs and lists, wrapped; what stands in backticks is bold, and keeps them: a name may be the word `a`."""
    return Piece(lambda width: _prose_lines(clean_text(text), min(width, WIDEST), style))


def _prose_lines(text: str, width: int, style: str) -> Iterator[StyledLine]:
    for at, block in enumerate(re.split(r"\n\s*\n", text)):
        if at:
            yield []
        for item in re.split(r"\n(?=- )", block):
            bullet = item.startswith("- ")
            for number, line in enumerate(_wrapped(item.removeprefix("- "), width - 2 * bullet, style)):
                yield [("" if not bullet else "  " if number else "- ", style), *line]


def _wrapped(text: str, width: int, style: str) -> Iterator[StyledLine]:
    line: StyledLine = []
    used = 0
    for word in _words(text, style):
        size = sum(cell_len(part) for part, _ in word)
        if line and used + 1 + size > width:
            yield line
            line, used = [], 0
        if line:
            line.append((" ", style))
            used += 1
        line += word
        used += size
    yield line


def _words(text: str, style: str) -> Iterator[StyledLine]:
    """Words, each in pieces with a style: a word may be code in part."""
    inside = False
    for word in _WORD.findall(text):
        pieces: StyledLine = []
        for part in re.split("(`)", word):
            if part:
                pieces.append((part, _CODE if inside or part == "`" else style))
            inside = inside != (part == "`")
        yield pieces


def line(text: str, style: str = "") -> Piece:
    """One line, cut where the terminal ends."""
    return Piece(lambda width: iter([[(cut(clean_text(text), width), style)]]))


def rule(text: str) -> Piece:
    """The heading of a step: a thin line with words in it."""
    return Piece(lambda width: iter([[(f"── {text} ".ljust(min(width, WIDEST), "─"), "dim")]]))


# -- code --------------------------------------------------------------------------------------------------------------


def code(text: str, *, numbered: bool = False) -> Piece:
    """Code, indented; with numbers of lines where a question is about lines."""

    def lines(width: int) -> Iterator[StyledLine]:
        for number, styled in enumerate(_highlighted(text), 1):
            before = f"{number:3}  " if numbered else _INDENT
            yield [(before, "dim"), *styled]

    return Piece(lines)


def changes(before: str, after: str) -> Piece:
    """What a mended program changes, with a line around each change."""

    def lines(width: int) -> Iterator[StyledLine]:
        diff = difflib.unified_diff(clean_text(before).split("\n"), clean_text(after).split("\n"), lineterm="", n=1)
        styles = {"+": "green", "-": "red"}
        for at, each in enumerate(diff):
            if at < 2:  # the names of two files
                continue
            if each.startswith("@@"):
                if at > 2:
                    yield [("  ⋮", "dim")]
            else:
                yield [(f"  {each[:1]} {each[1:]}", styles.get(each[:1], ""))]

    return Piece(lines)


def printed(text: str) -> Piece:
    """What code printed. Lines that are too long go on in the next, as far in as they began."""

    def lines(width: int) -> Iterator[StyledLine]:
        for row in clean_text(text.rstrip()).split("\n"):
            indent = row[: len(row) - len(row.lstrip())]
            for part in textwrap.wrap(row, max(width - 4, 20), subsequent_indent=f"{indent}  ") or [""]:
                yield [("  │ ", "dim"), (part, _OUTPUT)]

    return Piece(lines)


def _highlighted(text: str) -> list[StyledLine]:
    """Code with styles: keywords, strings and comments."""
    text = clean_text(text)
    rows = text.split("\n")
    styles = [[""] * len(row) for row in rows]
    try:
        for each in tokenize.generate_tokens(io.StringIO(text).readline):
            if style := _style_of(each):
                for at in range(each.start[0], each.end[0] + 1):
                    first = each.start[1] if at == each.start[0] else 0
                    last = each.end[1] if at == each.end[0] else len(rows[at - 1])
                    styles[at - 1][first:last] = [style] * (last - first)
    except (tokenize.TokenError, SyntaxError):  # no Python: shown as it is
        return [[(row, "")] for row in rows]
    return [_runs(row, style) for row, style in zip(rows, styles, strict=True)]


def _style_of(each: tokenize.TokenInfo) -> str:
    if each.type == token.COMMENT:
        return _COMMENT
    if "STRING" in token.tok_name[each.type]:  # since 3.12 an f-string is several tokens
        return _STRING
    return _CODE if each.type == token.NAME and keyword.iskeyword(each.string) else ""


def _runs(row: str, styles: list[str]) -> StyledLine:
    """Neighbours of one style as one piece."""
    pieces: StyledLine = []
    for character, style in zip(row, styles, strict=True):
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + character, style)
        else:
            pieces.append((character, style))
    return pieces


# -- the list ----------------------------------------------------------------------------------------------------------


def lesson_list(done: LessonsDone) -> Piece:
    """All lessons by folder: number, name, title, minutes, done or not."""

    def lines(width: int) -> Iterator[StyledLine]:
        count = 0
        for folder, heading in FOLDERS.items():
            listed = lessons(folder)
            numbers = range(count + 1, count + 1 + len(listed))
            count += len(listed)
            longest = max(len(lesson.name) for lesson in lessons())
            if numbers[0] > 1:
                yield []
            yield [(heading, "bold")]
            yield from table_lines(
                [
                    Column("", [f"{number:2}" for number in numbers], style="dim"),
                    Column("lesson", [lesson.name.ljust(longest) for lesson in listed], right=False),
                    Column("what it is about", [lesson.title for lesson in listed], right=False, readable=20, leaves=1),
                    Column("min", [str(lesson.minutes) for lesson in listed]),
                    Column("done", ["✓" if lesson.name in done else "" for lesson in listed], style="green"),
                ],
                width,
            )

    return Piece(lines)

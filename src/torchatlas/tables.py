"""Lines, and rows of a table -> plain text, for reports that print themselves. Names in them come from anybody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchatlas.escapes import clean


def text_lines(lines: Iterable[str]) -> str:
    r"""Lines one below the other, each safe for a terminal, and each one line whatever a name in it holds.

    >>> print(text_lines(["3 nodes", "note: \x1b[2Jforged\nline"]))
    3 nodes
    note: \x1b[2Jforged\nline
    """
    return "\n".join(map(clean, lines))


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, widest: int = 48) -> str:
    """A table; a > before a heading aligns its column to the right, cells longer than `widest` are cut in the middle.

    >>> print(text_table(["op", ">MACs"], [["mm", "1,024"], ["relu", "0"]]))
    op     MACs
    ----  -----
    mm    1,024
    relu      0
    """
    titles = [clean(heading.removeprefix(">")) for heading in headings]
    cells = [[_cut(clean(cell), widest) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    lines = [titles, ["-" * width for width in widths], *cells]
    right = [heading.startswith(">") for heading in headings]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if end else cell.ljust(width)
            for cell, width, end in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cut(text: str, widest: int) -> str:
    if len(text) <= widest:
        return text
    tail = widest // 2
    return f"{text[: widest - tail - 1]}…{text[-tail:]}"

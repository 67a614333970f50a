"""Columns of text: they fit, they line up, and they count the cells of a terminal."""

from __future__ import annotations

from rich.cells import cell_len

from torchatlas.tables import Column, cut, paragraph, plain, table_lines, text_table


def wrapped(text: str, width: int) -> list[str]:
    return plain(paragraph(text, width)).split("\n")


def test_cutting_and_wrapping_count_cells() -> None:
    for text in ("abcdefghijklmnop", "モデルモデルモデル", "e\N{COMBINING ACUTE ACCENT}" * 20, "❤️" * 20, "a" * 10_000):
        for width in (1, 2, 5, 8, 9):
            assert cell_len(cut(text, width)) <= width, (text, width)
        assert all(cell_len(line) <= 9 for line in wrapped(f"note: {text} and {text}", 9))
    assert cut("short", 5) == "short"
    assert cut("abcdefghij", 7) == "abc…hij"
    assert cut("一二三四五六七八九", 9) == "一二…八九"
    assert (wrapped("one two three", 7)) == ["one two", "three"]


def test_columns_leave_by_rank_before_text_is_cut() -> None:
    columns = [
        Column("name", ["encoder.layers.0.attention"], right=False, readable=10),
        Column("time", ["1.25 ms"], leaves=1),
        Column("bytes", ["10 MiB"], leaves=2),
    ]
    assert plain(table_lines(columns, 50)).split("\n")[0] == "name                           time   bytes"
    assert plain(table_lines(columns, 28)).split("\n")[2] == "encod…ntion  1.25 ms  10 MiB"
    assert plain(table_lines(columns, 20)).split("\n")[2] == "encod…ntion  1.25 ms"
    assert plain(table_lines(columns, 12)).split("\n")[2] == "encod…ention"


def test_a_text_table_counts_cells_and_shows_what_a_terminal_would_obey() -> None:
    lines = text_table(["name", ">n"], [["モデル", "1"], ["a\x1b[2J", "22"]]).split("\n")
    assert lines == ["name       n", "--------  --", "モデル     1", "a\\x1b[2J  22"]

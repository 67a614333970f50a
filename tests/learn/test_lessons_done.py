"""What was done is kept in the user's state folder; where that cannot be, nothing else goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchatlas.learn.lessons_done import LessonsDone, state_folder


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("TORCHATLAS_STATE", raising=False)
    assert state_folder() == tmp_path / ".local" / "state" / "torchatlas"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_folder() == tmp_path / "state" / "torchatlas"
    monkeypatch.setenv("TORCHATLAS_STATE", str(tmp_path / "own"))
    assert state_folder() == tmp_path / "own"


def test_what_was_done_is_read_again(tmp_path: Path) -> None:
    record = LessonsDone(tmp_path / "new" / "folder")
    assert "hooks" not in record
    record.add("hooks", right=2, asked=3)
    record.add("order", right=0, asked=0)
    again = LessonsDone(tmp_path / "new" / "folder")
    assert "hooks" in again
    assert again.when("hooks")
    assert again.when("in-place") is None
    assert again.reset("hooks") == ["hooks"]
    assert again.reset("hooks") == []
    assert "order" in LessonsDone(tmp_path / "new" / "folder")
    assert again.reset() == ["order"]
    assert not record.trouble
    assert len(LessonsDone(tmp_path / "new" / "folder")) == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"done": 3}', '{"done": {"a": 1}}', "\x00", "[" * 99999])
def test_a_file_that_is_no_record_is_said_and_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "lessons.json").write_text(text)
    record = LessonsDone(tmp_path)
    assert "not a record of lessons" in record.trouble
    assert len(record) == 0
    record.add("hooks", 1, 1)
    assert list(json.loads((tmp_path / "lessons.json").read_text())["done"]) == ["hooks"]


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record = LessonsDone(tmp_path / "file" / "folder")
    record.add("hooks", 1, 1)
    record.add("order", 1, 1)
    assert "hooks" in record  # for as long as the program runs
    assert record.trouble.startswith("What was done is not kept: cannot ")
    assert record.trouble.count("not kept") == 1

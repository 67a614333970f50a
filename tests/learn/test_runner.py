"""Lessons as files: what is read, what is refused, and how what is printed is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.learn.answers import Verdict, compare, compare_line
from torchatlas.learn.lesson import Kind, Lesson, read_lesson
from torchatlas.learn.lesson_session import LessonSession
from torchatlas.learn.runner import Runner, changed_lines, matches, undisturbed

HEAD = "# Title\nminutes: 2\n\n"
CODE = "```python\n{}\n```\n"
TEXT = "```text\n{}\n```\n"


def lesson_of(folder: Path, text: str) -> Lesson:
    path = folder / "07-my-own.md"
    path.write_text(text, "utf-8")
    return read_lesson(path)


def test_a_file_becomes_steps(tmp_path: Path) -> None:
    text = HEAD + "Before.\n\n> What\n> now?\n\n" + CODE.format("print(1)") + "\n" + TEXT.format("1")
    text += CODE.format("x = 2") + "\nAfter.\n\n```python page\ngraph = None\n```\n"
    lesson = lesson_of(tmp_path, text.replace("\n", "\r\n"))
    assert (lesson.name, lesson.title, lesson.minutes, lesson.finds) == ("my-own", "Title", 2, "")
    asked, silent, end = lesson.steps
    assert (asked.text, asked.question, asked.code, asked.expected) == ("Before.", "What now?", "print(1)", "1")
    assert (silent.kind, silent.text, silent.expected) == (Kind.CODE, "", None)
    assert (end.kind, end.text) == (Kind.TEXT, "After.")
    assert lesson.page is not None
    assert lesson.page.code == "graph = None"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "07-my-own.md:1: the first line of a lesson is its title"),
        ("Text", "the first line of a lesson is its title"),
        ("# Title\n\nText", "md:2: below the title stands how long"),
        ("# Title\nminutes: many\n\nText", "how long the lesson takes"),
        (HEAD, "the lesson has no steps"),
        (HEAD + "```python\nprint(1)\n", "md:4: the block that begins here has no end"),
        (HEAD + "> Why?\n", "a question needs a block of code"),
        (HEAD + "```bash\nls\n```\n", "unknown block 'bash'; known: python, "),
        (HEAD + TEXT.format("1"), "stands right after the code"),
        (HEAD + CODE.format("1") + "Text.\n" + TEXT.format("1"), "stands right after the code"),
        (HEAD + "```python broken\nprint(1)\n```\n", "`finds: KEY` goes with one block"),
        ("# Title\nminutes: 2\nfinds: order\n\nText.\n", "`finds: KEY` goes with one block"),
        (HEAD + "Text.\n```python page\n```\n```python page\n```\n", "one block `python page`"),
    ],
)
def test_a_file_that_is_no_lesson_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        lesson_of(tmp_path, text)
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.md").write_bytes(b"# \xe4\n")
    with pytest.raises(FileFormatError, match="UTF-8"):
        read_lesson(tmp_path / "latin.md")
    for absent in (tmp_path, tmp_path / "absent.md"):
        with pytest.raises(FileSystemError, match="Cannot read"):
            read_lesson(absent)


def test_what_is_printed_is_compared(tmp_path: Path) -> None:
    code = "import warnings\nprint(1)\nwarnings.warn('careful')\nraise ValueError('no\\nmore')"
    expected = "1\nUserWarning: careful\nValueError: no"
    for text, as_expected in ((expected, True), ("1\n...\nValueError: ...", True), ("1", False), ("2\n...", False)):
        lesson = lesson_of(tmp_path, HEAD + CODE.format(code) + TEXT.format(text))
        assert [each.as_expected for each in Runner(lesson).run_all()] == [as_expected]
    silent = lesson_of(tmp_path, HEAD + CODE.format("print(1)"))
    assert not Runner(silent).run_all()[0].as_expected  # it prints, and the lesson says that it does not
    assert matches("a\nb ", "a \nb")


def test_blocks_share_a_namespace_and_lines_go_on(tmp_path: Path) -> None:
    second = "def where():\n    raise KeyError(x)\n\n\nprint(where.__code__.co_firstlineno)"
    text = HEAD + CODE.format("x = 5") + CODE.format(second) + TEXT.format("3") + CODE.format("where()")
    runner = Runner(lesson_of(tmp_path, text + TEXT.format("KeyError: 5")))
    assert all(each.as_expected for each in runner.run_all())


BROKEN = """
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
MENDED = BROKEN.replace("    optimizer.step()", "    optimizer.step()\n    optimizer.zero_grad()")


@pytest.mark.parametrize(
    ("key", "broken", "mended", "right"),
    [
        ("not-zeroed", BROKEN, MENDED, [True, True]),
        ("order", BROKEN, MENDED, [False, True]),  # another fault than the lesson says
        ("not-zeroed", BROKEN, BROKEN, [True, False]),  # not mended
        ("not-zeroed", MENDED, MENDED, [False, True]),  # not broken
    ],
)
def test_the_doctor_decides(tmp_path: Path, key: str, broken: str, mended: str, right: list[bool]) -> None:
    text = f"# Title\nminutes: 1\nfinds: {key}\n\n```python broken{broken}```\n\nWhy.\n\n```python mended{mended}```\n"
    lesson = lesson_of(tmp_path, text)
    with undisturbed():
        assert [each.as_expected for each in Runner(lesson).run_all()] == right


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "printed", "verdict"),
    [
        ("2, 3", "tensor([2., 3.])", Verdict.RIGHT),
        ("2 3", "2\n3\n", Verdict.RIGHT),
        ("3 2", "2\n3\n", Verdict.WRONG),
        ("once", "1", Verdict.RIGHT),
        ("TRUE", "True", Verdict.RIGHT),
        ("no", "False", Verdict.RIGHT),
        ("nan", "nan", Verdict.RIGHT),
        ("mul", "MulBackward0", Verdict.RIGHT),
        ("MulBackward1", "AddBackward0", Verdict.WRONG),
        ("-1", "1", Verdict.WRONG),
        ("12", "12.0", Verdict.RIGHT),
        ("8000 bytes", "8000", Verdict.RIGHT),
        ("many", "8000", Verdict.WRONG),
        ("something", "", Verdict.WRONG),
        ("an error", "RuntimeError: ...", Verdict.RIGHT),
        ("3", "RuntimeError: something about 3", Verdict.WRONG),
        ("???", "7", Verdict.WRONG),
        ("a table", "word " * 40, Verdict.OPEN),
    ],
)
def test_answers(answer: str, printed: str, verdict: Verdict) -> None:
    assert compare(answer, printed) is verdict


def test_answers_that_are_lines() -> None:
    assert sorted(changed_lines("a\nb\nc", "a\nc")) == [2]
    assert sorted(changed_lines("a\nb", "a\nnew\nb")) == [1, 2]
    assert compare_line("line 2", {1, 2}) is Verdict.RIGHT
    assert compare_line("5", {1, 2}) is Verdict.WRONG
    assert compare_line("no idea", {1, 2}) is Verdict.OPEN


def test_a_session_asks_judges_and_counts(tmp_path: Path) -> None:
    text = HEAD + "> One?\n\n" + CODE.format("print(1)") + TEXT.format("1") + CODE.format("x = 1")
    text += "> Two?\n\n" + CODE.format("print(2)") + TEXT.format("2") + CODE.format("print(3)") + TEXT.format("3")
    text += "> Four?\n\n" + CODE.format("print(4)") + TEXT.format("5")
    answers, prompts, shown = iter(["1", "7", "", ""]), list[str](), list[str]()

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return next(answers)

    session = LessonSession(lesson_of(tmp_path, text), lambda piece: shown.append(str(piece)), ask)
    session.walk()
    assert (session.right, session.asked, session.as_expected) == (1, 2, False)
    question, run = "your answer (Enter: just see): ", "Enter runs it: "
    assert prompts == [question, question, run, question]  # of the block that prints nothing nobody is asked
    said = "\n".join(shown)
    assert "Right." in said
    assert "Not so: you said 7." in said
    assert "The lesson says something else" in said
    assert "3 of 4" in said

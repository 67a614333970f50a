"""A Markdown file -> Lesson. The form is explained in the docstring of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torchatlas.errors import FileFormatError, FileSystemError
from torchatlas.files import open_to_read

_HEAD = re.compile(r"(minutes|finds):\s*(\S+)\s*")
_FENCE = re.compile(r"```(.*)")
_NUMBER = re.compile(r"\d+-")  # before a file's name: the place among the lessons
_MOST_BYTES = 1_000_000


class Kind(StrEnum):
    """What is done with the code of a step."""

    TEXT = "text"  # there is none
    CODE = "python"
    BROKEN = "python broken"  # a program with a fault, for the doctor
    MENDED = "python mended"  # the same without it


@dataclass(frozen=True)
class LessonStep:
    """Text, and perhaps code with what it prints."""

    text: str
    kind: Kind = Kind.TEXT
    code: str = ""
    line: int = 0  # of the Markdown file that the code begins in
    question: str = ""
    expected: str | None = None  # what the code prints; `...` stands for anything. None: nothing is printed


@dataclass(frozen=True)
class Lesson:
    """One lesson."""

    name: str
    title: str
    minutes: int
    steps: tuple[LessonStep, ...]
    page: LessonStep | None = None  # the code that makes the graph of the page
    finds: str = ""  # the key of the doctor, for a lesson on a fault

    def step(self, kind: Kind) -> LessonStep:
        """The step of a kind that there is only one of."""
        return next(step for step in self.steps if step.kind is kind)


def read_lesson(path: Path) -> Lesson:
    """The lesson of a file. Its name is the file's, without the number before it."""
    try:
        with open_to_read(path) as file:
            text = file.read(_MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: a lesson is text in UTF-8: {error}.") from error
    except OSError as error:
        if isinstance(error, FileSystemError):
            raise
        raise FileSystemError(f"Cannot read {path}: {error.strerror or error}.") from error
    return _Parser(path, text.replace("\r\n", "\n").split("\n")).lesson()


class _Parser:
    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path, self.lines, self.at = path, lines, 0
        self.steps: list[LessonStep] = []
        self.page: LessonStep | None = None

    def lesson(self) -> Lesson:
        head = self._head()
        text: list[str] = []
        question: list[str] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if fence := _FENCE.fullmatch(line.rstrip()):
                if self._block(fence[1].strip(), _joined(text), " ".join(question)):
                    text, question = [], []
                continue
            if line.startswith(">"):
                question.append(line.removeprefix(">").strip())
            else:
                text.append(line)
            self.at += 1
        if question:
            raise self._wrong("a question needs a block of code after it")
        if _joined(text):
            self.steps.append(LessonStep(_joined(text)))
        if not self.steps:
            raise self._wrong("the lesson has no steps")
        kinds = [step.kind for step in self.steps if step.kind in (Kind.BROKEN, Kind.MENDED)]
        if kinds != ([Kind.BROKEN, Kind.MENDED] if head.get("finds") else []):
            raise self._wrong("`finds: KEY` goes with one block `python broken` and, after it, one `python mended`")
        return Lesson(
            _NUMBER.sub("", self.path.stem, count=1),
            head["title"],
            int(head["minutes"]),
            tuple(self.steps),
            self.page,
            head.get("finds", ""),
        )

    def _head(self) -> dict[str, str]:
        title = self.lines[0].removeprefix("# ").strip() if self.lines and self.lines[0].startswith("# ") else ""
        if not title:
            raise self._wrong("the first line of a lesson is its title: # Title")
        head = {"title": title}
        self.at = 1
        while self.at < len(self.lines) and (match := _HEAD.fullmatch(self.lines[self.at])):
            head[match[1]] = match[2]
            self.at += 1
        if not head.get("minutes", "").isdecimal():
            raise self._wrong("below the title stands how long the lesson takes: minutes: 3")
        return head

    def _block(self, info: str, text: str, question: str) -> bool:
        """Read a fenced block. True if the text and the question before it belong to it."""
        begin = self.at
        end = next((at for at in range(begin + 1, len(self.lines)) if self.lines[at].rstrip() == "```"), None)
        if end is None:
            raise self._wrong("the block that begins here has no end: ```")
        content = "\n".join(self.lines[begin + 1 : end])
        self.at = end + 1
        if info == "text":
            last = self.steps[-1] if self.steps else None
            if last is None or last.kind is Kind.TEXT or last.expected is not None or text or question:
                raise self._wrong("a block `text` stands right after the code that prints it", begin)
            self.steps[-1] = LessonStep(last.text, last.kind, last.code, last.line, last.question, content)
            return False
        if info == "python page":
            if self.page is not None or question:
                raise self._wrong("a lesson has one block `python page`, without a question", begin)
            self.page = LessonStep("", Kind.CODE, content, begin + 2)
            return False
        if info not in (Kind.CODE, Kind.BROKEN, Kind.MENDED):
            known = "python, python broken, python mended, python page, text"
            raise self._wrong(f"unknown block {info!r}; known: {known}", begin)
        self.steps.append(LessonStep(text, Kind(info), content, begin + 2, question))
        return True

    def _wrong(self, what: str, at: int | None = None) -> FileFormatError:
        return FileFormatError(f"{self.path}:{(self.at if at is None else at) + 1}: {what}.")


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).strip()

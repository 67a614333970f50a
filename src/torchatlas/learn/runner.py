"""Lesson -> what each step printed on the installed torch, and whether that is what the lesson says."""

from __future__ import annotations

import io
import linecache
import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from torchatlas.learn.lesson import Kind, Lesson, LessonStep

if TYPE_CHECKING:
    from torchatlas.diagnosis.findings import Findings


@dataclass(frozen=True)
class Outcome:
    """What running a step gave."""

    printed: str
    as_expected: bool  # what was printed, and what the doctor found
    findings: Findings | None = None  # of a program for the doctor


class Runner:
    """Runs the steps of a lesson, one after the other, in one namespace. Programs for the doctor get one each."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.namespace = _new_namespace()
        self._lines: list[str] = []  # of the blocks that ran, as one file

    def run(self, step: LessonStep) -> Outcome:
        """Run the code of a step. An exception of the code is printed, as its last line."""
        if step.kind is Kind.TEXT:
            return Outcome("", True)
        if step.kind is not Kind.CODE:
            return self._run_program(step)
        begin = len(self._lines)
        self._lines += [*step.code.split("\n"), ""]
        file = _known_to_python(f"{self.lesson.name}.py", self._lines)
        printed = io.StringIO()
        try:
            with _written_to(printed):
                exec(compile("\n" * begin + step.code, file, "exec"), self.namespace)
        except Exception as error:
            printed.write(_last_line(error))
        return Outcome(printed.getvalue(), matches(printed.getvalue(), step.expected))

    def run_all(self) -> list[Outcome]:
        """Run every step."""
        return [self.run(step) for step in self.lesson.steps]

    def _run_program(self, step: LessonStep) -> Outcome:
        from torchatlas.diagnosis.doctor import doctor

        printed = io.StringIO()
        visit = doctor()
        try:
            with visit, _written_to(printed):
                run_program(self.lesson, step)
        except Exception as error:
            printed.write(_last_line(error))
        findings = visit.findings
        expected = {self.lesson.finds} if step.kind is Kind.BROKEN else set()
        as_expected = set(findings.keys) == expected and not findings.failures
        return Outcome(printed.getvalue(), as_expected and matches(printed.getvalue(), step.expected), findings)


def run_program(lesson: Lesson, step: LessonStep) -> None:
    """Run a program for the doctor as a script of its own, not-zeroed-broken.py."""
    lines = step.code.split("\n")
    file = _known_to_python(f"{lesson.name}-{step.kind.removeprefix('python ')}.py", lines)
    exec(compile(step.code, file, "exec"), _new_namespace())


def changed_lines(broken: str, mended: str) -> set[int]:
    """The lines of a program that its mended form changes, counted from 1; where it adds some, the lines around these.

    >>> sorted(changed_lines("a\\nb\\nc\\nd", "a\\nx\\nc\\nnew\\nd"))
    [2, 3, 4]
    """
    lines: set[int] = set()
    for kind, first, last, _, _ in SequenceMatcher(None, broken.split("\n"), mended.split("\n")).get_opcodes():
        if kind == "insert":
            lines |= {first, first + 1}
        elif kind != "equal":
            lines |= set(range(first + 1, last + 1))
    return lines


def matches(printed: str, expected: str | None) -> bool:
    """True if a text is what the lesson says; `...` stands for anything, and spaces at the ends of lines do not count.

    >>> matches("loss 0.25\\n", "loss ..."), matches("1", None)
    (True, False)
    """
    pattern = ".*".join(map(re.escape, _trimmed(expected or "").split("...")))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave torch's random numbers, grad mode and default dtype as they were."""
    import torch

    enabled, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            torch.set_grad_enabled(enabled)
            torch.set_default_dtype(dtype)


def silenced() -> AbstractContextManager[None]:
    """Let code print nothing, and warn of nothing."""
    return _written_to(io.StringIO())


@contextmanager
def _written_to(printed: io.StringIO) -> Iterator[None]:
    """Collect what code prints. Warnings are printed, too: "UserWarning: ..."."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        printed.write(f"{category.__name__}: {_first_line(message)}\n")

    with warnings.catch_warnings(), redirect_stdout(printed):
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield


def _new_namespace() -> dict[str, Any]:
    return {"__name__": "__main__"}


def _known_to_python(name: str, lines: list[str]) -> str:
    """Give Python the lines of a file that does not exist: reports and pages quote them."""
    text = [f"{line}\n" for line in lines]
    linecache.cache[name] = (sum(map(len, text)), None, text, name)
    return name


def _last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {_first_line(error)}\n"


def _first_line(message: object) -> str:
    return next(iter(str(message).splitlines()), "")


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())

"""One lesson at a terminal: show a step, ask what it prints, run it, show what it printed, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torchatlas.learn import terminal_text
from torchatlas.learn.answers import Verdict, compare, compare_line
from torchatlas.learn.lesson import Kind, Lesson, LessonStep
from torchatlas.learn.runner import Outcome, Runner, changed_lines

_WHICH_LINE = "Which line is wrong, or where is one missing? Its number:"


@dataclass
class LessonSession:
    """Walks through a lesson. `show` prints a piece; `ask` reads a line, or is None: then no question is asked."""

    lesson: Lesson
    show: Callable[[Any], None]
    ask: Callable[[str], str] | None
    right: int = 0
    asked: int = 0  # how many answers were compared
    as_expected: bool = True
    outcomes: list[Outcome] = field(default_factory=list)

    def walk(self) -> None:
        """From the first step to the last."""
        runner = Runner(self.lesson)
        parts = max(sum(_prints(step) for step in self.lesson.steps), 1)
        number, begins = 1, True
        for step in self.lesson.steps:
            if begins:
                self.show("")
                self.show(terminal_text.rule("to take along" if step.kind is Kind.TEXT else f"{number} of {parts}"))
            if step.text:
                self.show(terminal_text.prose(step.text))
            answer = self._answer(step)
            outcome = runner.run(step)
            self._show_outcome(step, outcome, answer)
            self.outcomes.append(outcome)
            begins = _prints(step)  # a block that prints nothing prepares the next
            number += begins

    def _show_code(self, step: LessonStep) -> None:
        if step.text:
            self.show("")
        if step.kind is Kind.MENDED:
            self.show(terminal_text.changes(self.lesson.step(Kind.BROKEN).code, step.code))
        else:
            self.show(terminal_text.code(step.code, numbered=step.kind is Kind.BROKEN))
        self.show("")

    def _answer(self, step: LessonStep) -> str:
        """Show the code of a step and ask about it. Empty if there is no question, or no answer."""
        if step.kind is Kind.TEXT:
            return ""
        self._show_code(step)
        question = step.question or (_WHICH_LINE if step.kind is Kind.BROKEN else "")
        if question:
            self.show(terminal_text.prose(question, "bold"))
        if self.ask is None or not _prints(step):
            return ""
        return self.ask("your answer (Enter: just see): " if question else "Enter runs it: ").strip()

    def _show_outcome(self, step: LessonStep, outcome: Outcome, answer: str) -> None:
        if outcome.printed.strip():
            self.show(terminal_text.printed(outcome.printed))
        if outcome.findings is not None:
            if outcome.findings:
                self.show(terminal_text.line("The doctor says:"))
                self.show(terminal_text.printed("\n".join(map(str, outcome.findings))))
            else:
                self.show(terminal_text.line("The doctor finds nothing."))
        if answer and (step.question or step.kind is Kind.BROKEN):
            self._judge(step, outcome, answer)
        if not outcome.as_expected:
            self.as_expected = False
            self._show_difference(step, outcome)

    def _judge(self, step: LessonStep, outcome: Outcome, answer: str) -> None:
        if step.kind is Kind.BROKEN and not step.question:
            lines = changed_lines(step.code, self.lesson.step(Kind.MENDED).code)
            lines |= {line for finding in outcome.findings or () for _, line in finding.lines}
            verdict = compare_line(answer, lines)
        else:
            verdict = compare(answer, outcome.printed)
        if verdict is Verdict.OPEN:
            self.show(terminal_text.line(f"You said: {answer}. Compare."))
            return
        self.asked += 1
        if verdict is Verdict.RIGHT:
            self.right += 1
            self.show(terminal_text.line("Right.", "bold green"))
        else:
            self.show(terminal_text.line(f"Not so: you said {answer}.", "bold yellow"))

    def _show_difference(self, step: LessonStep, outcome: Outcome) -> None:
        import torch

        self.show(
            terminal_text.line(
                f"The lesson says something else; it may not hold for torch {torch.__version__}.", "bold red"
            )
        )
        expected = step.expected or "(nothing)"
        if outcome.findings is not None:
            keys = self.lesson.finds if step.kind is Kind.BROKEN else "no finding"
            expected = f"{expected}\nthe doctor: {keys}"
        self.show(terminal_text.line("It says:"))
        self.show(terminal_text.printed(expected))


def _prints(step: LessonStep) -> bool:
    return step.kind is not Kind.TEXT and (step.expected is not None or bool(step.question))

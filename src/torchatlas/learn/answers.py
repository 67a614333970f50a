"""An answer and what was printed -> right, wrong, or for the learner to compare."""

from __future__ import annotations

import re
from enum import StrEnum

_WORD = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[^\W\d]\w*", re.IGNORECASE)
_BACKWARD = re.compile(r"backward\d+$")  # MulBackward0 is mul
_DECORATION = frozenset(("tensor", "torch", "size"))  # tensor([2., 3.]) is 2, 3
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SAME: dict[str, str | float] = {"once": 1.0, "twice": 2.0, "yes": "true", "no": "false"}
_SAME |= {word: float(number) for number, word in enumerate(_NUMBERS)}
_FAILS = ("error", "raise", "fail", "refuse", "exception", "crash")  # how people say that code will not work
_FEW = 12  # words: a longer output cannot be predicted to the letter


class Verdict(StrEnum):
    """What comes of comparing."""

    RIGHT = "right"
    WRONG = "wrong"
    OPEN = "open"  # the output is too long to be typed: the learner compares


def compare(answer: str, printed: str) -> Verdict:
    """Compare words and numbers; brackets, commas, quotation marks, case and `tensor(...)` do not count.

    >>> compare("2, 3", "tensor([2., 3.])"), compare("none", "None"), compare("4", "tensor(4.5)")
    (<Verdict.RIGHT: 'right'>, <Verdict.RIGHT: 'right'>, <Verdict.WRONG: 'wrong'>)

    >>> compare("exp", "ExpBackward0")
    <Verdict.RIGHT: 'right'>

    Of an error it is enough to say that there is one.

    >>> compare("it raises", "RuntimeError: a leaf Variable that requires grad is being used ...")
    <Verdict.RIGHT: 'right'>
    """
    answered, real = _words(answer), _words(printed)
    if real and all(isinstance(word, float) for word in real):
        answered = [word for word in answered if isinstance(word, float)]  # 8000 bytes is 8000
    if answered == real:
        return Verdict.RIGHT
    if real and str(real[0]).endswith("error"):
        return Verdict.RIGHT if any(word in answer.lower() for word in _FAILS) else Verdict.WRONG
    return Verdict.WRONG if len(real) <= _FEW else Verdict.OPEN


def compare_line(answer: str, lines: set[int]) -> Verdict:
    """Compare the number of a line with those that are meant. Without a number there is nothing to compare.

    >>> compare_line("line 9", {9, 11}), compare_line("the loop?", {9})
    (<Verdict.RIGHT: 'right'>, <Verdict.OPEN: 'open'>)
    """
    numbers = {int(each) for each in re.findall(r"\d{1,9}", answer)}
    if not numbers:
        return Verdict.OPEN
    return Verdict.RIGHT if numbers & lines else Verdict.WRONG


def _words(text: str) -> list[str | float]:
    words = [_BACKWARD.sub("", word.lower()) for word in _WORD.findall(text)]
    return [_number(word) for word in words if word not in _DECORATION]


def _number(word: str) -> str | float:
    """Numbers are equal by value: 2 is 2.0. A word such as nan is no number here: it would not equal itself."""
    return _SAME.get(word, word) if word[0].isalpha() or word[0] == "_" else float(word)

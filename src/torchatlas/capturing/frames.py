"""Frames of Python: whether their code is the user's (not torch's, Python's or ours), their lines and variables.

What differs between versions of Python is read here and nowhere else:
- Variables. Up to 3.12 `frame.f_locals` of a function is a copy that lives as long as the call and that `locals()`
  shares; since 3.13 (PEP 667) it is a view of the variables themselves. `variables_of` reads both.
- Instructions. `frame.f_lasti` counts bytes, and an instruction has two; `position_of` turns it into columns. Up to
  3.10 code had no columns, and `co_qualname` was missing; hence 3.11 is the oldest.
- Generated frames. Since 3.12 a comprehension has no frame of its own: a line in it belongs to the function around it.
  Nothing here depends on which.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import traceback
import types
from itertools import islice, pairwise
from typing import Any

import torch
import typing_extensions

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_SKIPPED = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    typing_extensions.__file__,  # calls of torch's deprecated functions go through a wrapper in there
)
_CHECKPOINT = os.path.join(_SKIPPED[0], "utils", "checkpoint.py")
_RECOMPUTE = ("backward", "unpack_hook", "recompute_fn")
_GRADCHECK = os.path.join(_SKIPPED[0], "autograd", "gradcheck.py")
_COMMAND_LINE = os.path.join(_SKIPPED[1], "cli") + os.sep
_DEMO = os.path.join(_SKIPPED[1], "demo.py")  # a user's program, though it comes with us
_INDUCTOR = os.sep + "torchinductor_"  # the folder of the code that torch.compile writes
_TAKES_LOCALS = frozenset(("locals", "vars", "eval", "exec", "f_locals"))
_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME")  # in the code of Python, not attributes
GENERATED = "<plan of "  # how the file names of recording functions begin
USER, SKIP, ENDS = 0, 1, 5  # bits: the native recorder adds one of its own, 2, and skips what has SKIP's


@functools.lru_cache(maxsize=4096)
def code_kind(file: str) -> int:
    """USER for a file of the user's; SKIP for torch's, Python's and ours.

    ENDS for our command line: what called it is click and the shell's script, and no line of the user's.
    """
    if file == _DEMO:
        return USER
    if file.startswith(_COMMAND_LINE):
        return ENDS
    if _INDUCTOR in file:
        return SKIP
    if file.startswith(_SKIPPED) or file.startswith(("<frozen", "<eval_with_key", GENERATED)):
        return SKIP
    if file.startswith(_LIBRARY) and "-packages" + os.sep not in file:
        return SKIP
    return USER


def is_users(file: str) -> bool:
    """True for a file of the user's: not torch's, Python's or ours."""
    return code_kind(file) == USER


def user_line(frame: types.FrameType | None) -> tuple[types.CodeType, int] | None:
    """The nearest line of the user's, as a code object and an instruction."""
    while frame is not None:
        kind = code_kind(frame.f_code.co_filename)
        if kind != SKIP:
            return (frame.f_code, frame.f_lasti) if kind == USER else None
        frame = frame.f_back
    return None


# The walk of `user_line` as text, which record_op.py writes into the functions that record an op. It begins two frames
# up, and sets `code` (None: there is no such line) and `at`; `kind_of_code` keeps what `classify` has said of a code
# object. The native recorder has this walk in C++: `note_place` in native/calls.h.
USER_LINE_CODE = f"""\
frame = frame_at(2)
while frame is not None:
  code = frame.f_code; kind = kind_of_code(id(code))
  if kind is None: kind = classify(code)
  if kind != {SKIP}:
    if kind: code = None
    else: at = frame.f_lasti
    break
  frame = frame.f_back
else: code = None
"""


def raising_line(error: BaseException) -> str:
    """The user's line that an error came from, as "file:line: text"; empty if none is in its traceback."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if frame.line and is_users(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def program_line(frame: types.FrameType | None) -> tuple[types.FrameType | None, types.FrameType | None]:
    """The nearest frame of the program itself, and the nearest of an installed package if that one lies between.

    Trainers are installed packages: their loop is called by the line that people wrote.
    """
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if code_kind(file) == ENDS:
            break
        if code_kind(file) == USER:
            if not is_installed(file):
                return frame, library
            library = library or frame
        frame = frame.f_back
    return library, None


def is_installed(file: str) -> bool:
    """True for a file of an installed package. A package installed in editable mode counts as the user's."""
    return f"site-packages{os.sep}" in file or f"dist-packages{os.sep}" in file


def position_of(code: types.CodeType, instruction: int) -> tuple[int, int, int]:
    """The line of an instruction, and the bytes of that line it begins and ends at; all 0 if the code does not say."""
    line, _, begin, end = next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None))
    return line or 0, begin or 0, end or 0


def recomputes(code: types.CodeType) -> bool:
    """True for the functions of activation checkpointing that run the program's function again."""
    return code.co_filename == _CHECKPOINT and code.co_name in _RECOMPUTE


def recomputing() -> bool:
    """True while activation checkpointing runs its function again, on this stack."""
    return _is_under(sys._getframe(1), _CHECKPOINT, _RECOMPUTE)


def probing() -> bool:
    """True while gradcheck runs on this stack: it changes its inputs a little, and puts them back."""
    return _is_under(sys._getframe(1), _GRADCHECK)


def _is_under(frame: types.FrameType | None, file: str, functions: tuple[str, ...] = ()) -> bool:
    """True if one of the functions of a file, or any without names, has called a frame."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file and (not functions or code.co_name in functions):
            return True
        frame = frame.f_back
    return False


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame by name; none where reading them could disturb the program.

    Before 3.13 reading them copies those of a function into a dictionary that lives as long as the call. We empty it
    again, and do not read it where the program may use it, too: locals() returns it, exec() writes to it, and what a
    debugger has changed in it would be lost.
    """
    code = frame.f_code
    if sys.version_info >= (3, 13) or not code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() is not None or sys.getprofile() is not None or _takes_locals(code):
        return {}
    variables: Any = frame.f_locals
    copied: dict[str, Any] = dict(variables)
    if sys.getrefcount(variables) <= 3:  # else other code reads it, by the frame
        variables.clear()
    return copied


@functools.lru_cache(maxsize=4096)
def _takes_locals(code: types.CodeType) -> bool:
    """Whether code uses locals() or the like, by the names in it. Not meant: the @py_builtins.locals() that pytest
    writes into tests for its messages on failed assertions, and model.eval()."""
    if _TAKES_LOCALS.isdisjoint(code.co_names):
        return False
    used = [each for each in dis.get_instructions(code) if each.opcode in dis.hasname]
    names = [each.argval for each in used if each.argval != "eval" or each.opname in _VARIABLES]
    return any(name in _TAKES_LOCALS and before != "@py_builtins" for before, name in pairwise(["", *names]))

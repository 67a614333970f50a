"""Whose code runs: the user's, or torch's, Python's and ours, which no line of a graph names."""

from __future__ import annotations

import functools
import os
import sys
import types

import torch

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_SKIPPED = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)
_CHECKPOINT = os.path.join(_SKIPPED[0], "utils", "checkpoint.py")
_RECOMPUTE = ("backward", "unpack_hook", "recompute_fn")
_GRADCHECK = os.path.join(_SKIPPED[0], "autograd", "gradcheck.py")
_DEMO = os.path.join(_SKIPPED[1], "demo.py")  # a user's program, though it comes with us
_INDUCTOR = os.sep + "torchinductor_"  # the folder of the code that torch.compile writes
USER, SKIP = 0, 1


@functools.lru_cache(maxsize=4096)
def code_kind(file: str) -> int:
    """Whose a file is: USER or SKIP."""
    if file == _DEMO:
        return USER
    if _INDUCTOR in file:
        return SKIP
    if file.startswith(_SKIPPED) or file.startswith(("<frozen", "<eval_with_key", "<plan of")):
        return SKIP
    if file.startswith(_LIBRARY) and "-packages" + os.sep not in file:
        return SKIP
    return USER


def is_users(file: str) -> bool:
    """Whether a file is the user's, and not torch's, Python's or ours."""
    return code_kind(file) == USER


def user_line(frame: types.FrameType | None) -> tuple[types.CodeType, int] | None:
    """The nearest line of the user's, as a code object and an instruction."""
    while frame is not None:
        if code_kind(frame.f_code.co_filename) == USER:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def recomputing() -> bool:
    """Whether activation checkpointing is running its function again, on this stack."""
    return _is_under(sys._getframe(1), _CHECKPOINT, _RECOMPUTE)


def probing() -> bool:
    """Whether gradcheck runs, on this stack: it changes inputs by a little, sees what comes of it, puts them back."""
    return _is_under(sys._getframe(1), _GRADCHECK)


def _is_under(frame: types.FrameType | None, file: str, functions: tuple[str, ...] = ()) -> bool:
    """Whether a function of a file has called a frame; without names, any."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == file and (not functions or code.co_name in functions):
            return True
        frame = frame.f_back
    return False

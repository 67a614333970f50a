"""A listener is told of some ops while they are recorded; a clock says which op ran when.

A recorder asks its listener once per operator what it wants to be told of; the recorder in C++ calls Python for nothing
else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from enum import IntFlag
from typing import Any, Protocol

import torch

from torchatlas.capturing.row_schema import Plan
from torchatlas.torch_private import next_sequence_nr


class Wants(IntFlag):
    """When a listener wants to hear of an op. asking.h of the native recorder has the same numbers."""

    NOTHING = 0
    ALWAYS = 1
    NOT_FINITE = 2  # a result has NaN or infinities, or a kind of memory that the native recorder does not read
    FIRST_WITHOUT_GRADIENTS = 4  # gradients are disabled, and autograd has made a node since the last such op
    # It writes to memory that several tensors have, or numpy. The recorder in Python tells of other writes, too.
    SHARED_WRITE = 8
    OUTSIDE_STEPS = 16  # no optimizer is at work, or a closure runs that it calls


class OpClock:
    """Counts the ops of a recording, and knows which came first after each node of autograd was made."""

    def __init__(self) -> None:
        self._ops = 0
        # (sequence number, op) pairs: of all ops, and of those with gradients enabled
        self._first_ops: tuple[list[tuple[int, int]], ...] = [], []

    @property
    def ops(self) -> int:
        return self._ops

    def count(self) -> None:
        """An op has run."""
        self._ops += 1
        number = next_sequence_nr() - 1
        for firsts in self._first_ops if torch.is_grad_enabled() else self._first_ops[:1]:
            if not firsts or number > firsts[-1][0]:
                firsts.append((number, self._ops))

    def first_op(self, number: int, with_gradients: bool) -> int | None:
        """The first op that ended after autograd had given out a number; None if there is none."""
        firsts = self._first_ops[with_gradients]
        position = bisect_left(firsts, (number, 0))
        return None if position == len(firsts) else firsts[position][1]


class OpListener(Protocol):
    """What a recording may tell of its ops."""

    def wants(self, plan: Plan) -> Wants:
        """Asked once per operator."""

    def told(self, plan: Plan, why: int, args: Any, kwargs: Any, out: Any) -> None:
        """Called after an op that was wanted, for the reasons `why`, as in Wants. Raises nothing."""

    def around(self, plan: Plan, run: Callable[[Any, Any], Any], clock: OpClock) -> Callable[[Any, Any], Any]:
        """Wraps the function by which the recorder in Python records an operator, to count ops and to call `told`."""

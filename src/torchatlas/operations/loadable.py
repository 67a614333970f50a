"""The operators that a graph from a file may call, by name and overload: those in loadable_operators.txt.

An operator is on the list because it has a category, because hostile calls did not lead its kernel outside of its
memory (benchmarks/probe_operators.py), and because a person looked at what it takes. What a kernel does not check by
itself is checked before it runs: execute/preconditions.py.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def loadable_operators() -> frozenset[str]:
    """Names such as "aten.add.Tensor", from lines such as "add: Tensor Scalar out"."""
    names = set[str]()
    for line in Path(__file__).with_name("loadable_operators.txt").read_text("utf-8").splitlines():
        operator, _, overloads = line.partition("#")[0].partition(":")
        names |= {f"aten.{operator}.{overload}" for overload in overloads.split()}
    return frozenset(names)

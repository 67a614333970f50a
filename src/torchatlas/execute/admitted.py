"""The operators that a graph from a file may call, by name and overload: those in admitted_operators.txt.

An operator is on the list because it is in the operation table, because hostile calls did not lead its kernel outside
of its memory (benchmarks/probe_operators.py), and because a person looked at what it takes. What a kernel does not
check by itself is checked before it runs: preconditions.py.
"""

from __future__ import annotations

from importlib.resources import files


def _read(text: str) -> frozenset[str]:
    """Lines such as "add: Tensor Scalar out" -> names such as "aten.add.Tensor"."""
    found = set()
    for line in text.splitlines():
        packet, _, overloads = line.partition("#")[0].partition(":")
        found |= {f"aten.{packet}.{overload}" for overload in overloads.split()}
    return frozenset(found)


ADMITTED = _read(files("torchatlas.execute").joinpath("admitted_operators.txt").read_text("utf-8"))

"""Graph -> the FLOPs, all arithmetic and the bytes moved of every node; -1 is unknown."""

from __future__ import annotations

from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("work")
def work(subject: Subject) -> Members:
    """Per node the figures that atlas.cost sums."""
    counts = subject.counts
    if counts is None:
        return {}
    return {
        "node_flops.npy": counts.flops.astype("f8"),
        "node_arithmetic.npy": subject.arithmetic,
        "node_moved.npy": counts.bytes.astype("f8"),
    }

"""Graph -> from when to when each storage counts, and what it is for: the stacks of atlas.memory's timeline."""

from __future__ import annotations

import numpy as np

from torchatlas.analysis.storages import CATEGORIES, storages_of
from torchatlas.analysis.totals import memory_usage
from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("memory")
def memory(subject: Subject) -> Members:
    """A storage counts after every node from start to end, both included, with its size; `resizes` change that size.

    What the recording counted beyond that (node_memory_bytes) is the last category, "not attributed".
    """
    graph = subject.graph
    if graph.peak_bytes is None:
        return {}
    storages = storages_of(graph)
    about = {
        "categories": [{"key": key, "title": title} for key, title in CATEGORIES.items()],
        "at_least": memory_usage(graph)["at_least"],
        "resizes": storages.resizes.tolist(),
    }
    return {
        "memory.json": about,
        "storage_start.npy": storages.start.astype(np.int32),
        "storage_end.npy": storages.end.astype(np.int32),
        "storage_category.npy": storages.category.astype(np.uint8),
    }

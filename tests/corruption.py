"""Damaging a file in many ways, the same every time: loading must raise FileFormatError or give a sound graph."""

import random
from collections.abc import Iterator
from pathlib import Path

from torchatlas.errors import FileFormatError
from torchatlas.graph import Graph
from torchatlas.graph.consistency import faults


def damaged(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Cut short, bytes flipped, parts removed, doubled, exchanged or overwritten."""
    rng = random.Random(seed)
    for position in range(0, len(data), max(len(data) // 100, 1)):
        yield data[:position]
    for number in range(count):
        found = bytearray(data)
        start = rng.randrange(len(data))
        stop = min(start + rng.choice([1, 1, 1, 2, 4, 8, 40]), len(data))
        match number % 5:
            case 0:
                found[start] ^= 1 << rng.randrange(8)
            case 1:
                del found[start:stop]
            case 2:
                found[start:stop] *= 2
            case 3:
                found[start:stop] = rng.randbytes(stop - start)
            case 4:
                other = rng.randrange(len(data))
                found[start:stop] = data[other : other + stop - start]
        yield bytes(found)


def outcome(path: Path) -> str:
    """What loading came to: refused, or loaded, and then everything the graph hands out is looked at."""
    try:
        graph = Graph.load(path)
    except FileFormatError as error:
        if str(path) not in str(error):
            raise
        return "refused"
    assert faults(graph.columns, graph.tables) is None
    for node in graph:
        _ = node.name, node.thread, node.operation, node.arguments, node.scope.path, node.source, node.writes
        _ = [(value.shape, value.parameter, value.producer, value.storage) for value in node.inputs]
    _ = [(edge.source.id, edge.value) for edge in graph.edges], [storage.device for storage in graph.storages]
    return "loaded"

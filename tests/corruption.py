"""Damaging a file in many ways, the same ones every time; loading must then raise FileFormatError or give a sound graph."""

import random
from collections.abc import Iterator
from pathlib import Path

from torchatlas.errors import FileFormatError
from torchatlas.graph import Graph
from torchatlas.graph.columns import faults


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
    """ "refused", or "loaded" after looking at everything the graph hands out. Any other error is the test's failure."""
    try:
        graph = Graph.load(path)
    except FileFormatError as error:
        assert str(path) in str(error)
        return "refused"
    assert faults(graph.columns, graph.tables) is None
    for node in graph:
        _ = node.name, node.thread, node.operation, node.arguments, node.scope.path, node.source, node.writes
        _ = [(value.shape, value.parameter, value.producer, value.storage) for value in node.inputs]
    assert len(graph.edges) == len([edge.source.id for edge in graph.edges])
    assert [storage.device for storage in graph.storages] != None
    return "loaded"

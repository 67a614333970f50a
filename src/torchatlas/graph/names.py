"""Names for people: the short names of operations and of lines of a program, and what a graph was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchatlas.graph.nouns import SourceLine

# fx writes functions with their Python path, where the last part is the name; dispatcher operators are
# namespace.name.overload, where the middle one is.
_PYTHON_PATHS = ("torch", "_operator", "operator", "builtins", "math", "nn", "")


def short_name(operation: str) -> str:
    """aten.add_.Tensor -> add_, nn.Conv2d -> Conv2d, torch.nn.functional.relu -> relu.

    >>> short_name("aten.add_.Tensor"), short_name("nn.Conv2d"), short_name("AddBackward0")
    ('add_', 'Conv2d', 'AddBackward0')
    """
    parts = operation.split(".")
    if len(parts) >= 3 and parts[0] not in _PYTHON_PATHS:
        return parts[1]
    return parts[-1]


def short_line(source: SourceLine | None) -> str:
    """A line of the program for a table: the name of its file, without folders, and its number."""
    return "" if source is None else f"{source.file.replace(chr(92), '/').rpartition('/')[2]}:{source.line}"


def origin(source: str) -> str:
    """What a graph was made from, after "Graph of".

    >>> origin("run"), origin("export"), origin("autograd")
    ('a run', 'an export', 'autograd')
    """
    return {"run": "a run", "export": "an export", "fx": "a torch.fx module"}.get(source, source)

"""Names for people: the short name of an operation, and any text of a file inside a message."""

from __future__ import annotations

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


def shown(text: str, most: int = 60) -> str:
    """A text that may come from anybody's file, for a message: quoted, cut, nothing in it that moves a cursor.

    >>> shown("\x1b[2J"), shown("ab" * 100, 6)
    ("'\\\\x1b[2J'", "'ababab…'")
    """
    return repr(text if len(text) <= most else f"{text[:most]}…")

"""No two files and no two public classes share a name, unless they share its meaning."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import torchatlas

ROOT = Path(torchatlas.__file__).parent
NAMESAKES = (
    "cli/",
    "render/viewer/sections/",
)  # the verb of a file elsewhere, and what a page of the viewer shows of it
FILES = {
    "plots": "plots of a graph, and of the steps of a run",
    "recorder": "the recorder in Python, and the one in C++",
    "recording": "the session that makes one graph, and the one that makes a run of many",
    "roofline": "its figures, and its drawing",
}
CLASSES = {
    "AtlasCallback": "the callback for Lightning, and the one for transformers",
    "OperationType": "the category of an operation; in compat in the words of pytorch-graph",
}


def test_no_two_files_share_a_name() -> None:
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        if path.stem not in ("__init__", "__main__") and not place.startswith(NAMESAKES):
            places[path.stem].append(place)
    shared = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert sorted(shared) == sorted(FILES), shared


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno}")
    shared = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert sorted(shared) == sorted(CLASSES), shared

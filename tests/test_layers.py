"""Data goes from left to right and never back: no folder imports from one on its right."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torchatlas

ROOT = Path(torchatlas.__file__).parent
LAYERS = [
    {"escapes"},
    {"errors", "interrupts", "deprecation", "native_modules"},
    {"units", "registry", "tables", "garbage_collection", "files", "progress_line"},
    {"argument_errors", "lazy"},
    {"sections"},
    {"graph"},
    {"operations", "torch_private", "inputs"},
    {"canaries"},
    {"capturing"},
    {"autograd", "execute"},
    {"analysis"},
    {"diagnosis"},
    {"partition"},
    {"pipeline"},
    {"export"},
    {"render"},
    {"runs"},
    {"integrations"},
    {"compat"},
    {"demo", "checkpoint_plans"},
    {"selftest", "types", "learn"},
    {"cli"},
    {"__main__"},
]
WITHOUT_TORCH = {
    "escapes",
    "errors",
    "interrupts",
    "deprecation",
    "lazy",
    "units",
    "registry",
    "argument_errors",
    "tables",
    "garbage_collection",
    "files",
    "progress_line",
    "sections",
    "graph",
    "operations",
    "analysis",
    "partition",
    "render",
    "export",
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room(path: Path) -> str:
    """The folder or file directly under torchatlas."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported name with its full path, and whether importing the file imports it."""
    tree = ast.parse(path.read_text())
    here = ["torchatlas", *path.relative_to(ROOT).with_suffix("").parts]
    later = {id(node) for item in ast.walk(tree) for node in _not_at_once(item)}
    for node in ast.walk(tree):
        at_once = id(node) not in later
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from ((f"{module}.{alias.name}", at_once) for alias in node.names)


def _not_at_once(item: ast.AST) -> Iterator[ast.AST]:
    is_typing = isinstance(item, ast.If) and "TYPE_CHECKING" in ast.dump(item.test)
    if is_typing or isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        yield from ast.walk(item)


def test_every_room_has_a_place() -> None:
    assert {room(path) for path in FILES} <= set(RANK)


def test_nothing_is_imported_from_the_right() -> None:
    for path in FILES:
        mine, here = RANK[room(path)], path.relative_to(ROOT)
        for name, _ in imports(path):
            package, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if package == "torchatlas" and other in RANK:
                assert RANK[other] <= mine, f"{here} imports {name}"
                assert RANK[other] < mine or other == room(path), f"{here} imports its neighbour {name}"


def test_torch_is_not_needed_to_look_at_a_graph() -> None:
    for path in FILES:
        if room(path) in WITHOUT_TORCH:
            found = [name for name, at_once in imports(path) if at_once and name.partition(".")[0] == "torch"]
            assert found == [], path.relative_to(ROOT)


def test_the_check_itself_sees_imports(tmp_path: Path) -> None:
    """Seen on a file of our own: relative, nested and typing-only imports are told apart."""
    found = dict(imports(ROOT / "graph" / "graph.py"))
    assert found["torchatlas.errors.NodeNotFoundError"] is True
    lazy = dict(imports(ROOT / "graph" / "objects.py"))
    assert lazy["torchatlas.graph.graph.Graph"] is False

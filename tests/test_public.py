"""The public names: sorted, importable, and light to import."""

from __future__ import annotations

import importlib
import inspect

import children
import pytest

import torchatlas as atlas

MODULES = ("torchatlas", "torchatlas.types", "torchatlas.compat")
NAMES = [(module, name) for module in MODULES for name in importlib.import_module(module).__all__]


def run(code: str) -> str:
    return children.python(code).strip()


@pytest.mark.parametrize("module", MODULES)
def test_all_is_sorted_and_without_repetition(module: str) -> None:
    names = importlib.import_module(module).__all__
    assert list(names) == sorted(set(names))


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_name_is_there_and_documented(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    assert found.__doc__
    assert name in dir(importlib.import_module(module))


def test_types_are_the_classes_that_functions_return() -> None:
    """Each return annotation of a public function is a public name, or a built-in one."""
    known = {name for _, name in NAMES} | {
        "None",
        "str",
        "float",
        "dict",
        "list",
        "Any",
        "Callable",
        "Formula",
        "Iterator",
        "Path",
    }
    for name in atlas.__all__:
        item = getattr(atlas, name)
        if inspect.isfunction(item):
            words = inspect.signature(item).return_annotation.replace("[", " ").replace("]", " ").replace(",", " ")
            assert {word for word in words.split() if word.isidentifier()} <= known, (name, words)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        atlas.nothing


def test_importing_does_not_import_torch() -> None:
    code = "import sys, torchatlas, torchatlas.compat; print('torch' in sys.modules)"
    assert run(code) == "False"


def test_using_a_lazy_name_imports_torch() -> None:
    assert run("import sys, torchatlas; torchatlas.capture; print('torch' in sys.modules)") == "True"


def test_importing_takes_little() -> None:
    """A fraction of what torch takes: nobody should wait to look at a saved graph.

    Packages of CUDA builds load `cuda` when Python starts.
    """
    code = """
import sys, torchatlas
names = {name.partition(".")[0] for name in sys.modules if not name.startswith("_")} - set(sys.stdlib_module_names)
print(sorted(names - {"typing_extensions", "cuda"}), "torchatlas.operations.formulas" in sys.modules)
"""
    assert run(code) == "['msgspec', 'numpy', 'torchatlas'] False"


def test_star_import_gives_exactly_the_public_names() -> None:
    code = "from torchatlas import *; import torchatlas as t; print(sorted(n for n in t.__all__ if n not in globals()))"
    assert run(code) == "[]"

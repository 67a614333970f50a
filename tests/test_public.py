"""The public names: sorted, importable, and light to import."""

from __future__ import annotations

import children
import pytest

import torchatlas as atlas


def run(code: str) -> str:
    return children.python(code).strip()


def test_all_is_sorted_and_without_repetition() -> None:
    assert list(atlas.__all__) == sorted(set(atlas.__all__))


@pytest.mark.parametrize("name", atlas.__all__)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(atlas, name)
    assert found.__doc__
    assert name in dir(atlas)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        atlas.nothing


def test_every_lazy_name_is_public() -> None:
    assert set(atlas._LAZY) <= set(atlas.__all__)


def test_importing_does_not_import_torch() -> None:
    assert run("import sys, torchatlas; print('torch' in sys.modules)") == "False"


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

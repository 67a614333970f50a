"""Looking at a saved graph waits for no large library."""

import children


def test_the_formats_are_there_and_their_libraries_are_not() -> None:
    program = """
import sys
import torchatlas
from torchatlas.graph.formats import READERS, VIEWS, WRITERS
assert {".json", ".atlas"} <= set(READERS), set(READERS)
assert {".json", ".atlas", ".csv", ".parquet"} <= set(WRITERS), set(WRITERS)
assert {"pandas", "networkx"} <= set(VIEWS), set(VIEWS)
import torchatlas.analysis
loaded = {"torch", "pandas", "networkx", "pyarrow", "safetensors"} & set(sys.modules)
assert not loaded, loaded
"""
    children.python(program)

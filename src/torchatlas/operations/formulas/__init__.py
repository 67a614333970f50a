"""One call of an operation -> its work. One function per operation, grouped by what the operations are for.

Importing this takes as long as drawing a small picture: code that needs no cost does not import it.
"""

from importlib import import_module
from pathlib import Path

from torchatlas.operations.work import FORMULAS, formula_for, results_for_backward

__all__ = ["FORMULAS", "formula_for", "results_for_backward"]

for _file in sorted(Path(__file__).parent.glob("*.py")):  # a new formula needs no list to be entered in
    import_module(f"{__name__}.{_file.stem}") if _file.stem != "__init__" else None

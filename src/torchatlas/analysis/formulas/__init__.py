"""One call of an operation -> its work. One function per operation, grouped by what the operations are for."""

from importlib import import_module
from pathlib import Path

from torchatlas.analysis.formulas.work import FORMULAS, OpCall, Operand, Work, formula, formula_for

__all__ = ["FORMULAS", "OpCall", "Operand", "Work", "formula", "formula_for"]

for _file in sorted(Path(__file__).parent.glob("*.py")):  # a new formula needs no list to be entered in
    import_module(f"{__name__}.{_file.stem}") if _file.stem != "__init__" else None

"""What is known of operators, by name and without torch: one table that capturing, execute, partition and render read.

`of("aten.addmm.default")` is a row of it, with everything known of one operator. The columns are a file each:
categories.py, kernel_kinds.py, behaviour.py (writes and memory that no schema tells), loadable.py (what a file may
call) and formulas/ (what a call costs, and which results only backward needs).
"""

from torchatlas.operations.behaviour import UNINITIALIZED
from torchatlas.operations.categories import operation_type, type_of_box
from torchatlas.operations.operator_table import Operator, of, register_operator

__all__ = ["UNINITIALIZED", "Operator", "of", "operation_type", "register_operator", "type_of_box"]

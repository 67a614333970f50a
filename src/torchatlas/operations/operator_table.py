"""A row of the table of operators: everything known of one of them. And how a program adds a row of its own."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchatlas.argument_errors import explains_arguments
from torchatlas.errors import AnalysisError
from torchatlas.graph.columns import Operation
from torchatlas.graph.names import short_name
from torchatlas.graph.nouns import OperationType
from torchatlas.operations import behaviour
from torchatlas.operations.categories import dotted, operation_type, register_category, without_overload
from torchatlas.operations.kernel_kinds import KernelKind, kernel_kind
from torchatlas.operations.loadable import loadable_operators
from torchatlas.registry import did_you_mean

if TYPE_CHECKING:
    from torchatlas.operations.work import Formula


@dataclass(frozen=True)
class Operator:
    """What is known of one operator. Formulas and the list of loadable operators are read when first asked for."""

    name: str  # aten.add.Tensor
    category: OperationType  # RANDOM says that it draws random numbers, or is the backward of what does
    kernel: KernelKind  # what it can be fused with
    hidden_writes: tuple[tuple[str, ...], str] | None  # arguments written unannounced, and the flag that makes it so
    overwrites: bool  # it writes its first argument without reading it
    fills: str  # the argument that it writes without reading it, unannounced
    updates: str  # the argument that it reads and writes, unannounced
    uninitialized: bool  # its results hold whatever was in memory
    resizes: bool  # what it enlarges holds whatever was in memory
    has_workspace: bool  # bytes for its backward, of a size that only the real kernel knows
    takes_storage: bool  # it puts another storage under a tensor
    may_copy: bool  # a view if it can be, else a copy
    asynchronous: bool  # it returns before its results are ready
    gloo_buffered: bool  # gloo reduces into buffers of its own
    acts_outside: bool  # a second run would be seen outside of the program
    bookkeeping: bool  # not part of a program

    @property
    def loadable(self) -> bool:
        """Whether a graph from a file may call it."""
        return self.name in loadable_operators()

    @property
    @explains_arguments
    def formula(self) -> Formula | None:
        """What a call of it costs; None when that is not known."""
        from torchatlas.operations.formulas import formula_for

        return formula_for(Operation(self.name, self.category))

    @property
    def backward_only(self) -> tuple[int, ...]:
        """The positions of its results that only its backward needs; most operators have none."""
        from torchatlas.operations.formulas import results_for_backward

        return results_for_backward(self.name)


@functools.cache
def of(name: str) -> Operator:
    """Everything known of an operator, by its full name.

    >>> row = of("aten.native_layer_norm.default")
    >>> row.category.value, row.kernel.value, row.backward_only, row.loadable
    ('norm', 'rows', (1, 2), True)
    """
    packet, category, short = without_overload(name), operation_type(name), short_name(name)
    return Operator(
        name=name,
        category=category,
        kernel=kernel_kind(name, category),
        hidden_writes=behaviour.HIDDEN_WRITES.get(packet),
        overwrites=packet in behaviour.OVERWRITES,
        fills=behaviour.fills(packet),
        updates=behaviour.updates(packet),
        uninitialized=name in behaviour.UNINITIALIZED,
        resizes=name in behaviour.RESIZES,
        has_workspace=packet in behaviour.WITH_WORKSPACE,
        takes_storage=name in behaviour.TAKES_STORAGE,
        may_copy=short in behaviour.MAY_COPY,
        asynchronous=behaviour.is_asynchronous(packet),
        gloo_buffered=packet in behaviour.GLOO_BUFFERED,
        acts_outside=short.removesuffix("_copy") in behaviour.ACTS_OUTSIDE,
        bookkeeping=behaviour.is_bookkeeping(packet),
    )


@explains_arguments
def register_operator(
    name: str, *, category: OperationType | str | None = None, formula: Formula | None = None
) -> None:
    """Tell torchatlas what your own operator or module class is.

    Args:
        name: An operator with all its overloads, "mylib::scan", or a module class, "mylib.Scan".
        category: How it is drawn, fused and counted: an OperationType or its word, such as "reduction".
        formula: A function from one call (OpCall) to what it costs (Work).
    Raises:
        AnalysisError: torchatlas already knows what you register, the name is of neither form, or there is neither a
            category nor a formula.
    Example:
        >>> import torchatlas as atlas
        >>> def scan(call: atlas.OpCall) -> atlas.Work:
        ...     return atlas.Work(elementwise_flops=call["x"].numel)
        >>> atlas.register_operator("docs_example::scan", category="reduction", formula=scan)
    """
    from torchatlas.operations.formulas import FORMULAS

    full = dotted(str(name))  # also an operator itself, torch.ops.mylib.scan
    if not re.fullmatch(r"[^\s.]+(?:\.[^\s.]+)+", full):
        raise AnalysisError(f"cannot register {name!r}: expected 'namespace::name' or 'package.Class'")
    if category is None and formula is None:
        raise AnalysisError(f"register_operator({name!r}) needs a category, a formula or both.")
    known = [one.value for one in OperationType]
    if category is not None and category not in known:
        raise AnalysisError(
            f"{category!r} is no category{did_you_mean(str(category), known) or '.'} Known: {', '.join(known)}"
        )
    if formula is not None and full in FORMULAS:
        raise AnalysisError(f"cannot register {name!r}: its cost formula is registered twice.")
    if category is not None:
        register_category(full, OperationType(category))
    if formula is not None:
        FORMULAS.add(full)(formula)
    of.cache_clear()


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Deprecated: `register_operator(name, category=..., formula=...)` takes both together.

    Args:
        *names: The operators that the decorated function is the formula of.
    Returns:
        A decorator.
    """
    warnings.warn(
        "formula is now register_operator(name, category=, formula=); the old name goes with the next minor version.",
        DeprecationWarning,
        stacklevel=2,
    )

    def register(function: Formula) -> Formula:
        for name in names:
            register_operator(name, formula=function)
        return function

    return register

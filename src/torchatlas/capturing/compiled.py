"""Graphs that torch.compile made: the recorder sees each call of one as one op.

The kernels of such a graph do not pass the dispatcher, and the few operators that do take buffers that no recorded op
made. So the graph is one op, with the tensors it takes, writes and returns; what runs inside it is not recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from torchatlas.capturing.frames import recomputing, user_line
from torchatlas.capturing.recorder import Recorder
from torchatlas.capturing.row_schema import RECOMPUTING, OpRow, Plan
from torchatlas.torch_private import COMPILED_NAME, current_autograd_node, next_sequence_nr

GRAPH = "inductor.graph"
OPAQUE = (
    f"inductor's fused kernels do not pass the dispatcher: each call of a graph it compiled is one node "
    f"({GRAPH}.0 ...); what runs inside, and the memory it takes meanwhile, is not seen"
)
INLINED = (
    "torch.compile ran part of the program: the ops of modules inside that part count for the module around it, and "
    "have the line of the compiled function"
)
SCRIPTED = (
    "a module of torch.jit ran: the ops of modules inside it count for it, and have the line that called it; what "
    "TorchScript fuses into one kernel is not seen"
)
_COMPILED_MODULE = "OptimizedModule"  # torch.compile(model)
_SCRIPTED_MODULES = frozenset({"RecursiveScriptModule", "ScriptModule", "TopLevelTracedModule", "TracedModule"})


def run_as_one(
    recorder: Recorder, name: str, graph: Callable[[list[Any]], Any], inputs: list[Any], written: Iterable[int]
) -> Any:
    """Run a compiled graph on a list of inputs, which it empties, and record one op; it writes some of the inputs."""
    environment = recorder.environment
    guard, keep = environment["guard"], environment["keep"]
    number = _plan(recorder, name)
    numbers: list[int] = []
    structure = environment["tensors_out"](((inputs,), {}), numbers)
    positions = [index for index, item in enumerate(inputs) if isinstance(item, torch.Tensor)]
    changed = {positions.index(index): inputs[index] for index in sorted(written)}
    if guard is not None:
        guard(list(changed.values()))
    node, grad = current_autograd_node(), int(torch.is_grad_enabled())
    call, line = recorder.current
    code, at = line or user_line(sys._getframe(1)) or (None, 0)
    sequence, began = next_sequence_nr(), time.perf_counter_ns()
    try:
        with recorder.paused():
            out = graph(inputs)
    except BaseException as error:
        environment["failed"](number, error, call, code, at)
        raise
    ended = time.perf_counter_ns()
    # Inputs that backward will need are returned as well, as they are.
    made = [
        item for item in out if isinstance(item, torch.Tensor) and recorder.numbers.known_number(item) not in numbers
    ]
    if keep is not None:
        keep(made, list(changed.values()))
    back = None if node is None else node._sequence_nr()
    if back is not None and grad and recomputing():
        grad = RECOMPUTING
    row = OpRow(
        plan=number,
        start_ns=began,
        end_ns=ended,
        next_sequence_nr=sequence,
        backward_nr=back,
        call=call,
        code=code,
        instruction=at,
        grad_mode=grad,
        needs_grad=False,
    )
    recorder.rows.extend((*row, (numbers, structure, *changed), recorder.numbers.results(made)))
    return out


def _plan(recorder: Recorder, name: str) -> int:
    for number, plan in enumerate(recorder.plans):
        if plan.operator is None and plan.name == name:
            return number
    return recorder.add_plan(Plan(None, name, others=(0,), readable=False))


def compiler_notes(operations: Iterable[str], codes: Iterable[Any], modules: Collection[str]) -> list[str]:
    """Notes on a graph that compilers ran parts of, by its ops, the code of its lines and its modules."""
    notes = [OPAQUE] if any(name.startswith(f"{GRAPH}.") for name in operations) else []
    if _COMPILED_MODULE in modules or any(name.startswith(COMPILED_NAME) for code in codes for name in code.co_names):
        notes.append(INLINED)
    return notes if _SCRIPTED_MODULES.isdisjoint(modules) else [*notes, SCRIPTED]

"""Decide where a debugged backward pass stops next: steps, breakpoints and conditions.

The session is told of every node by the real engine, in the thread that runs it. At a stop it calls `pause`, which
hands over to another thread (debugger.py), or talks to the user at a terminal (debug_console.py).
"""

from __future__ import annotations

import math
import numbers
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from torchatlas.autograd.check_arguments import counted, whole_number
from torchatlas.autograd.debug_stop import DebuggedRun, Stop, numbers_at
from torchatlas.autograd.engine_observer import EngineRun, Gradients
from torchatlas.autograd.gradient_statistics import all_finite
from torchatlas.autograd.graph_walk import leaf_of
from torchatlas.autograd.print_graph import shape_text
from torchatlas.errors import InvalidInputError, NodeNotFoundError, StateError
from torchatlas.escapes import clean
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.shown import ShownPart
from torchatlas.registry import near_names
from torchatlas.torch_private import FakeTensor, engine_run_id, unobserved, will_be_executed

Test = Callable[[Stop], bool]
_BUILDS_INSIDE = "CheckpointFunctionBackward"
_SUGGESTED, _LISTED = 3, 12  # names
_ENDS = ("Backward0", "Backward1", "Backward", "AccumulateGrad")  # operations
_NUMBERED = re.compile(r"(Backward\d*|Grad)_\d+$|\.(\w+Backward\d*|AccumulateGrad)$")


class Aborted(Exception):
    """The debugger gave up this backward pass."""


@dataclass(eq=False, repr=False)
class Breakpoint(ShownPart):
    """Where to stop, and why."""

    text: str  # where, in words
    test: Test = field(repr=False)  # says of a Stop whether to stop
    name: str | None = None  # that a node, operation, module or parameter must have
    origin: bool = False  # where NaN or infinity is made, and not wherever it arrives
    hits: int = 0  # how often it came

    def __str__(self) -> str:
        return clean(self.text)

    def __repr__(self) -> str:
        return f"<Breakpoint at {self}, came {counted(self.hits, 'time')}>"


class DebugSession:
    """An engine_observer.EngineObserver that decides where to stop. Threads that stop wait for each other."""

    def __init__(
        self,
        pause: Callable[[], None],
        names: Mapping[int, str],
        forward: Graph | None,
        modules: Mapping[int, str] | None = None,
    ) -> None:
        self.pause, self.names, self.forward = pause, names, forward
        self._modules = modules  # the paths of modules by id; None: no model is known
        self.runs: dict[int, DebuggedRun] = {}
        self.breakpoints: list[Breakpoint] = []
        self._here: tuple[DebuggedRun, int, int, Gradients] | None = None  # node, and how many ran before it
        self._stop: Stop | None = None
        self.hit: Breakpoint | None = None  # why it stopped
        self._order: list[tuple[int, int]] = []  # task, node
        self._forgotten = 0  # nodes that ran before those
        self._passed = False  # whether the last of them runs now, and `before` was not called for it
        self.aborting = False
        self.interrupted = False
        self._steps = 0  # that are left before the next stop; -1: none but breakpoints stop it
        self._until: Test | None = None
        self._until_origin = False
        self._seen: set[int] = set()  # tasks in which NaN or infinity was seen: later nodes may only pass it on
        self._made_inside: set[int] = set()  # tasks whose running node ran an inner pass that made it
        self._from_outside = False  # whether it arrives at the current node although no node has made it
        self._handles: dict[int, Any] = {}  # of the hooks after nodes, by task
        self._finite: bool | None = None  # whether what arrives there is finite; None: not checked
        self._replacement: Gradients | None = None
        self._turn, self._stopped = threading.RLock(), False

    # -- where to stop -----------------------------------------------------------------------------------------------

    def go(self, *, steps: int = -1, until: Test | None = None, origin: bool = False) -> None:
        """Set where to stop next. `origin`: also ask `until` after nodes that make NaN or infinity."""
        self._steps, self._until, self._until_origin = steps, until, origin

    def go_until(self, condition: Breakpoint) -> None:
        """Go on to the next stop at which a condition holds, other than this one."""
        here = None if self.stop is None or self.stop.made is not None else self.stop.number

        def comes(stop: Stop) -> bool:
            return (stop.made is not None or stop.number != here) and condition.test(stop)

        self.go(until=comes, origin=condition.origin)

    def condition(
        self, what: Any = None, *, above: float | None = None, nan: bool = False, zero: bool = False
    ) -> Breakpoint:
        """A Breakpoint at a name (node, operation, module, parameter), a function of a Stop, or gradients of a kind.

        `nan` alone is the node that makes NaN or infinity of finite gradients, after it ran.
        """
        tests: list[tuple[str, Test]] = []
        name = self._name_of(what)
        if name is not None:
            self._check_name(name)
            tests.append((name, lambda stop: _is_called(stop, name)))
        elif what is not None:
            tests.append((getattr(what, "__name__", "a condition"), what))
        if above is not None:
            limit = _number(above)
            tests.append((f"norm above {limit:g}", lambda stop: stop.norm() > limit))
        origin = nan and what is None and above is None and not zero
        if origin:
            tests.append(("not finite", lambda stop: stop.made is not None or self._from_outside))
        elif nan:
            tests.append(("not finite", lambda stop: not _are_finite(stop, stop.gradients)))
        if zero:
            tests.append(("zero", lambda stop: any(not g.any() for g in stop.dense())))
        if not tests:
            raise InvalidInputError("say where to stop: a name, a function, above=, nan=True or zero=True.")
        text = ", ".join(text for text, _ in tests)
        return Breakpoint(text, lambda stop: all(test(stop) for _, test in tests), name, origin)

    def _name_of(self, what: Any) -> str | None:
        """The name that a condition asks for; a tensor, node or module stands for its own. None for a function."""
        if isinstance(what, GraphNode):
            return what.name
        if isinstance(what, torch.Tensor):
            if id(what) not in self.names:
                raise InvalidInputError("this tensor has no name: pass model= or params= to debug_backward.")
            return self.names[id(what)]
        if isinstance(what, nn.Module):
            return self._path_of(what)
        if what is None or isinstance(what, str):
            return what
        if not callable(what) or isinstance(what, type):
            kind = what.__name__ if isinstance(what, type) else type(what).__name__
            raise InvalidInputError(f"a breakpoint is a name or a function, not {kind}.")
        return None

    def _path_of(self, module: nn.Module) -> str:
        kind = type(module).__name__
        if self._modules is None:
            raise InvalidInputError(
                f"which of the modules this {kind} is cannot be told: pass model= to debug_backward, or its name here."
            )
        if not self._modules.get(id(module)):
            known = "is the whole model: all nodes are in it" if id(module) in self._modules else "is not in the model"
            raise InvalidInputError(f"this {kind} {known}. Stop at one of the modules of the model.")
        return self._modules[id(module)]

    def _check_name(self, name: str) -> None:
        known = self._known_names(list(self.runs.values()))
        hidden = _BUILDS_INSIDE in known  # what a checkpoint will run is not there yet
        if known and name not in known and not hidden:
            hint = _did_you_mean(name, known)
            if self.forward is None:
                hint += " Modules are known with forward=, a recording of the forward pass."
            raise NodeNotFoundError(f"no node, operation, module or parameter is named {name!r}{hint}")

    def _known_names(self, runs: list[DebuggedRun]) -> set[str]:
        known: set[str] = set()
        for graph in (run.graph for run in runs):
            known |= {node.name for node in graph.nodes} | {node.operation for node in graph.nodes}
            known |= set(graph.scopes) | {value.parameter for value in graph.values if value.parameter}
        return known - {""}

    def never_came(self) -> list[str]:
        """Each breakpoint that nothing matched, and names of the first pass that look like its name."""
        left = [each for each in self.breakpoints if not each.hits]
        known = self._known_names(list(self.runs.values())[:1]) if any(each.name for each in left) else set()
        return [
            each.text + (_did_you_mean(each.name, known) if each.name and known and each.name not in known else "")
            for each in left
        ]

    # -- what the engine tells ---------------------------------------------------------------------------------------

    def begin(self, task: EngineRun) -> None:
        self.add(task)

    def add(self, task: EngineRun) -> DebuggedRun:
        run = self.runs[task.number] = DebuggedRun(task, self.names, self.forward)
        return run

    @property
    def stop(self) -> Stop | None:
        """The node that is about to run."""
        if self._passed:  # it was not looked at
            task, node = self._order[-1]
            return self._stop_at(self.runs[task], node, self.executed - 1, ())
        if self._stop is None and self._here is not None:
            self._stop = self._stop_at(*self._here)
        return self._stop

    def _stop_at(self, run: DebuggedRun, node: int, number: int, gradients: Gradients) -> Stop:
        return Stop(run, run.graph.nodes[run.numbers[node]], number, gradients)

    @property
    def executed(self) -> int:
        """How many nodes ran, or began to."""
        return self._forgotten + len(self._order)

    def forget(self, passes: int) -> None:
        """Let go of all passes but the first and the last so many; of the others only the number of nodes is kept."""
        for number in list(self.runs)[1:-passes]:
            del self.runs[number]
        before = len(self._order)
        self._order[:] = [ran for ran in self._order if ran[0] in self.runs]
        self._forgotten += before - len(self._order)

    @property
    def order(self) -> list[str]:
        """The names of the nodes that ran."""
        runs = ((self.runs[task], node) for task, node in self._order)
        return [run.graph.nodes[run.numbers[node]].name for run, node in runs]

    def over(self) -> None:
        """No node is about to run."""
        self._here, self._stop, self._passed = None, None, False

    def edges(self, task: EngineRun) -> None:
        """Gradients on edges are not looked at."""

    def passing(self, task: EngineRun) -> Callable[[int], bool]:
        """A function that is true for nodes for which `before` has to be called: where a stop is possible."""
        number, breakpoints, note = task.number, self.breakpoints, self._order.append

        def passes(node: int) -> bool:
            if breakpoints or self._until is not None or self.aborting or self.interrupted or self._stopped:
                return True
            if self._steps >= 0:
                if self._steps < 2:
                    return True
                self._steps -= 1
            self._passed = True
            note((number, node))
            return False

        return passes

    def before(self, task: EngineRun, node: int, gradients: Gradients) -> Gradients | None:
        with self._turn:
            return self._before(task, node, gradients)

    def _before(self, task: EngineRun, node: int, gradients: Gradients) -> Gradients | None:
        if self.aborting:
            raise Aborted
        run = self.runs[task.number]
        self._here, self._stop, self._passed = (run, node, self.executed, gradients), None, False
        if run.wanted is None and task.inputs:  # only the engine itself knows, and only while it runs
            nodes = enumerate(run.walk.nodes)
            candidates = [(n, torch_node) for n, torch_node in nodes if task.accumulates or leaf_of(torch_node) is None]
            run.wanted = {n for n, torch_node in candidates if will_be_executed(torch_node)}
        if self._wants_to_stop():
            self._pause_here()
        changed, self._replacement = self._replacement, None
        if changed is not None:
            self._finite = None
        self._watch_result(task, node, gradients if changed is None else changed)
        # While we hold a gradient, accumulating it would copy it: the leaf could not take it over.
        self._here, self._stop, self._passed = None, None, True
        self._order.append((task.number, node))
        return changed

    def _pause_here(self) -> None:
        self.interrupted, self._stopped = False, True
        try:
            self.pause()
        finally:
            self._stopped = False
        if self.aborting:
            raise Aborted

    def _watch_result(self, task: EngineRun, node: int, gradients: Gradients) -> None:
        """Hook the result of this node, if some condition asks which node makes NaN or infinity."""
        running = task.nodes[node]
        if not self._wants_origins() or leaf_of(running) is not None:
            return
        stop = self._stop_at(self.runs[task.number], node, self.executed, gradients)
        if self._finite is None:
            self._finite = _are_finite(stop, gradients)
        if not self._finite:
            return
        engine_run = engine_run_id()

        def after(made: Gradients, taken: Gradients) -> None:
            if engine_run_id() == engine_run:  # a run inside of this one may go through the same node
                handle.remove()
                with self._turn:
                    self._after(task, replace(stop, made=made))

        handle = running.register_hook(after)
        self._handles[task.number] = handle

    def _after(self, task: EngineRun, stop: Stop) -> None:
        if self.aborting:
            raise Aborted
        assert stop.made is not None
        if _are_finite(stop, stop.made):
            return
        self._seen.add(task.number)
        if task.outer is not None:
            self._made_inside.add(task.outer)
        if task.number in self._made_inside:
            self._made_inside.discard(task.number)
            return
        with unobserved():
            if not self._comes(stop, [each for each in self.breakpoints if each.origin], self._until_origin):
                return
        self._here, self._stop, self._passed = None, stop, False
        self._pause_here()
        self._here, self._stop, self._passed = None, None, True

    def _comes(self, stop: Stop, breakpoints: list[Breakpoint], asks_until: bool) -> bool:
        """Whether to stop here: for one of some breakpoints or, if that is asked as well, for what `go` waits for."""
        came = [each for each in breakpoints if each.test(stop)]
        for each in came:
            each.hits += 1
        self.hit = came[0] if came else None
        return bool(came) or (asks_until and self._until is not None and self._until(stop))

    def _wants_origins(self) -> bool:
        return self._until_origin or any(each.origin for each in self.breakpoints)

    def _look_for_origins(self, stop: Stop) -> None:
        task = stop.run.task.number
        self._finite = _are_finite(stop, stop.gradients)
        self._from_outside = not self._finite and task not in self._seen
        if not self._finite:
            self._seen.add(task)

    def _wants_to_stop(self) -> bool:
        self.hit, self._finite, self._from_outside = None, None, False
        if self.breakpoints or self._until is not None:
            stop = self.stopped()
            with unobserved():  # the program's modes are not to see what conditions compute
                if self._wants_origins():
                    self._look_for_origins(stop)
                if self._comes(stop, self.breakpoints, True):
                    return True
        if self._steps > 0:
            self._steps -= 1
        return self._steps == 0 or self.interrupted

    def end(self, task: EngineRun, error: BaseException | None) -> None:
        if (handle := self._handles.pop(task.number, None)) is not None:
            handle.remove()  # its node has raised
        self._seen.discard(task.number)
        self._made_inside.discard(task.number)
        if error is None:  # else it is where it happened
            self.over()

    # -- while it is stopped -----------------------------------------------------------------------------------------

    def stopped(self) -> Stop:
        stop = self.stop
        if stop is None:
            raise StateError("no node is about to run: backward has not begun, or it is over.")
        return stop

    def replace(self, gradient: torch.Tensor, index: int = 0) -> None:
        """Replace a gradient that arrives at the current node."""
        if self.stopped().made is not None:
            raise InvalidInputError(
                f"{self.stopped().name} has run already: step once, and replace what arrives at the next node."
            )
        arriving, number = list(self.stopped().gradients), whole_number(index, "the index of a gradient")
        if not 0 <= number < len(arriving):
            arrive = counted(len(arriving), "gradient") + (" arrives" if len(arriving) == 1 else " arrive")
            raise InvalidInputError(f"{arrive} at this node; there is no number {number}.")
        was = arriving[number]
        if not isinstance(gradient, torch.Tensor):
            raise InvalidInputError(f"a gradient is a tensor, not {type(gradient).__name__}.")
        if was is None:
            raise InvalidInputError(f"no gradient arrives as number {number}, and torch lets nobody put one there.")
        if was.is_nested and was.layout is torch.strided:
            raise InvalidInputError("torch lets nobody replace a gradient that is a strided nested tensor.")
        wanted, got = _kind_of(was), _kind_of(gradient)
        if wanted != got:
            raise InvalidInputError(f"the gradient is {wanted}; this is {got}.")
        arriving[number] = gradient
        self._replacement = tuple(arriving)
        self.stopped().gradients = self._replacement


def _kind_of(gradient: torch.Tensor) -> str:
    """The properties that torch wants a replacement to have."""
    layout = "" if gradient.layout is torch.strided else f"{gradient.layout} "
    kind = "fake " if isinstance(gradient, FakeTensor) else ""
    return f"{kind}{layout}{gradient.dtype} of {shape_text(gradient)} on {gradient.device}"


def _number(above: Any) -> float:
    if isinstance(above, torch.Tensor) and above.numel() == 1:
        above = above.item()
    if not isinstance(above, numbers.Real) or math.isnan(above):
        raise InvalidInputError(f"`above` is a number, not {above!r}: above=10.0.")
    return float(above)


def _did_you_mean(name: str, known: set[str]) -> str:
    """Names that are near or hold the name, and what else there is."""
    single = sorted((one for one in known if not _is_numbered(one)), key=lambda one: (not one.endswith(_ENDS), one))
    holding = [one for one in single if name.lower() in one.lower()]
    near = (holding or near_names(name, known))[:_SUGGESTED]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    more = f" and {len(single) - _LISTED} more" if len(single) > _LISTED else ""
    return f"; there are {', '.join(single[:_LISTED])}{more}." if single else "."


def _is_numbered(name: str) -> bool:
    """True for one node of several of an operation, such as AddmmBackward0_3; AddmmBackward0 is a name as well."""
    return _NUMBERED.search(name) is not None


def _are_finite(stop: Stop, gradients: Gradients) -> bool:
    with unobserved():
        return all(all_finite(numbers_at(each, stop.name)) for each in gradients if each is not None)


def _is_called(stop: Stop, name: str) -> bool:
    module = stop.module
    inside = module == name or module.startswith(f"{name}.") if name else False
    return name in (stop.name, stop.operation, stop.parameter) or inside

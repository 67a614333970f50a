"""A backward pass one node at a time: the real engine, paused in a thread of its own.

Results are torch's own, to the bit: nothing is computed here. While it is paused, the gradients that have arrived can
be looked at and replaced.
"""

from __future__ import annotations

import atexit
import contextvars
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch import nn

from torchatlas.argument_errors import explains_arguments
from torchatlas.autograd.check_arguments import (
    Params,
    check_backward,
    counted,
    forward_graph,
    names_by_id,
    whole_number,
)
from torchatlas.autograd.debug_session import Aborted, Breakpoint, DebugSession
from torchatlas.autograd.debug_stop import Stop
from torchatlas.autograd.engine_observer import EngineRun, Gradients, watched
from torchatlas.capturing.recording import Recording
from torchatlas.errors import InvalidInputError, StateError
from torchatlas.graph import Graph, GraphNode
from torchatlas.graph.shown import Shown
from torchatlas.interrupts import Bracket, signals_deferred
from torchatlas.sections import Lines, Section, Table
from torchatlas.torch_private import (
    dispatch_mode_stack,
    engine_has_threads,
    function_mode_stack,
    functorch_depth,
    pop_function_mode,
    push_function_mode,
    push_mode,
    remove_mode,
    restore_saved_tensor_hooks,
    saved_tensor_hooks_forbidden,
    top_saved_tensor_hooks,
)


class Debugger(Shown, Bracket["Debugger"]):
    """Backward from a tensor, or from several, that waits before each node.

    Use it in a `with` block: leaving it early aborts the pass. `step`, `next_module`, `run_until` and `run` go on and
    return the node that is about to run, or None at the end.

    Args:
        outputs: The tensor, or tensors, to begin at.
        gradients: The gradients to begin with, one per output; None for outputs that are single numbers.
        inputs: The leaves whose `.grad` is filled; None fills all. As in `torch.autograd.backward`.
        retain_graph: Keep what nodes saved, so that backward can run again; None does so with `create_graph`.
        create_graph: Make a graph of the gradients themselves, for second derivatives.
        model: Names the leaves as the model does, and lets modules be named.
        params: Names of leaves: a dictionary from name to tensor, or `model.named_parameters()`.
        forward: A recording of the forward pass: nodes then belong to the module and line of their forward op.
    Raises:
        InvalidInputError: `outputs` or `gradients` are no tensors.
        AnalysisError: There is no graph behind `outputs`.
        StateError: Another debugger is at work.
    Example:
        >>> import torch, torchatlas as atlas
        >>> model = torch.nn.Linear(4, 2)
        >>> with atlas.debug_backward(model(torch.ones(1, 4)).sum(), model=model) as dbg:
        ...     stop = dbg.run_until("weight")
        ...     print(dbg.executed, stop.norm())
        ['SumBackward0', 'AddmmBackward0', ...] 2.8...
    """

    @explains_arguments
    def __init__(
        self,
        outputs: Any,
        gradients: Any = None,
        *,
        inputs: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        model: nn.Module | None = None,
        params: Params = None,
        forward: Graph | Recording | None = None,
    ) -> None:
        outputs, roots = check_backward(outputs, gradients, "debug_backward")
        self._keep_graph = create_graph if retain_graph is None else retain_graph
        call, names = (outputs, gradients, retain_graph, create_graph), names_by_id(params, model)
        modules = None if model is None else {id(module): path for path, module in model.named_modules()}
        recorded = forward_graph(forward)
        self._worker = _Worker(call, inputs, lambda pause: DebugSession(pause, names, recorded, modules))
        self._session = self._worker.session
        planned = EngineRun(0, None, roots, {}, self._keep_graph, create_graph)  # walked when first asked for
        self._planned = self._session.add(planned)
        weakref.finalize(self, _Worker.abort, self._worker)

    # -- going on ----------------------------------------------------------------------------------------------------

    def step(self, count: int = 1) -> Stop | None:
        """Run `count` nodes. The first call only goes to the first node: nothing has run then.

        Args:
            count: How many nodes to run.
        Returns:
            The node that is about to run; None at the end.
        Raises:
            InvalidInputError: `count` is no whole number from 1.
            StateError: The pass is over.
        """
        count = whole_number(count, "the number of nodes to run")
        if count < 1:
            raise InvalidInputError(f"step takes a number of nodes from 1, not {count}.")
        return self._go(steps=count)

    def next_module(self) -> Stop | None:
        """Run until a node of another module is about to run.

        Modules are known from a recording of the forward pass: `forward=`.

        Returns:
            The node that is about to run; None at the end.
        Raises:
            StateError: There is no recording of the forward pass, or the pass is over.
        """
        if self._session.forward is None:
            raise StateError(
                "no node has a module without the forward pass: record it (with atlas.recording(model) as forward: "
                "loss = ...) and pass it: debug_backward(loss, forward=forward.graph)."
            )
        here = None if self._session.stop is None else self._session.stop.module
        return self._go(until=lambda stop: stop.module != here)

    def run_until(
        self, what: Any = None, *, above: float | None = None, nan: bool = False, zero: bool = False
    ) -> Stop | None:
        """Run until a node, or gradients of a kind, are reached.

        Args:
            what: The name of a node, an operation, a module or a parameter; a node of `graph`, a parameter or, with
                `model`, a module itself; or a function of a Stop that says whether to stop.
            above: Stop at gradients with a norm above this number.
            nan: Stop at gradients that are not finite. Alone, it stops at the node that makes NaN or infinity of finite
                gradients, after it ran: the stop then has what it `made`.
            zero: Stop at gradients of only zeros.
        Returns:
            The node that is about to run; None if backward ended before.
        Raises:
            InvalidInputError: Nothing says where to stop, or `what` cannot be understood.
            NodeNotFoundError: There is nothing of that name; the message lists near names.
            StateError: The pass is over.
        """
        self._session.go_until(self._session.condition(what, above=above, nan=nan, zero=zero))
        return self._worker.go_on()

    def run(self) -> Stop | None:
        """Run to the next breakpoint, or to the end."""
        return self._go()

    def _go(self, **where: Any) -> Stop | None:
        self._session.go(**where)
        return self._worker.go_on()

    # -- breakpoints -------------------------------------------------------------------------------------------------

    def break_at(
        self, what: Any = None, *, above: float | None = None, nan: bool = False, zero: bool = False
    ) -> Breakpoint:
        """Set a breakpoint: from now on, stop whenever a node, or gradients of a kind, are reached.

        Args:
            what: As in `run_until`: a name, a node, a parameter, a module, or a function of a Stop.
            above: Stop at gradients with a norm above this number.
            nan: Stop at gradients that are not finite.
            zero: Stop at gradients of only zeros.
        Returns:
            The Breakpoint; remove it from `breakpoints` to clear it.
        Raises:
            InvalidInputError: Nothing says where to stop, or `what` cannot be understood.
            NodeNotFoundError: There is nothing of that name; the message lists near names.
        """
        self._session.breakpoints.append(self._session.condition(what, above=above, nan=nan, zero=zero))
        return self._session.breakpoints[-1]

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """The breakpoints that are set. Remove one from the list to clear it."""
        return self._session.breakpoints

    # -- looking -----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> Stop | None:
        """The node that is about to run, or has just made a NaN; None before the first step and after the end."""
        return self._session.stop

    @property
    def gradients(self) -> Gradients:
        """The gradients that arrive at the current node."""
        return self._session.stopped().gradients

    @property
    def ready(self) -> list[GraphNode]:
        """Nodes that have all their gradients and wait for their turn, by our model of the engine's queue."""
        stop = self._session.stopped()
        return stop.run.queues(stop.node.id)[0]

    @property
    def waiting(self) -> list[GraphNode]:
        """Nodes that have some of their gradients, by our model of the engine."""
        stop = self._session.stopped()
        return stop.run.queues(stop.node.id)[1]

    @property
    def executed(self) -> list[str]:
        """The names of the nodes that ran, in order."""
        return self._session.order

    @property
    def finished(self) -> bool:
        """Whether backward has run to its end or was aborted."""
        return self._worker.done

    @property
    def graph(self) -> Graph:
        """The graph that backward runs, in the order in which it is expected to."""
        return self._session.stop.run.graph if self._session.stop is not None else self._planned.graph

    # -- changing ----------------------------------------------------------------------------------------------------

    def replace(self, gradient: torch.Tensor, index: int = 0) -> None:
        """Replace a gradient that arrives at the current node.

        Args:
            gradient: The tensor, of the same shape and dtype.
            index: Which of the gradients that arrive.
        Raises:
            InvalidInputError: The gradient does not fit, or there is none of that index.
            StateError: No node is about to run.
        """
        self._session.replace(gradient, index)

    def abort(self) -> str:
        """Give up. Gradients that were accumulated so far stay. Returns what became of the graph, in words."""
        ran = self._session.executed
        self._worker.abort()
        if self._keep_graph:
            return f"{counted(ran, 'node')} ran; the graph is kept, and backward can run again."
        if not ran:
            return "no node ran: the graph is as it was."
        return (
            f"{counted(ran, 'node')} ran: what {'it' if ran == 1 else 'they'} saved is freed, and backward through "
            f"{'it' if ran == 1 else 'them'} cannot run again. With retain_graph=True it would be kept."
        )

    def _begin(self) -> Debugger:
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._worker.abort()

    def __repr__(self) -> str:
        if self._worker.done:
            return f"<backward, over: {counted(self._session.executed, 'node')} ran>"
        stop = self._session.stop
        if stop is None:
            return f"<backward of {counted(len(self._planned.walk.nodes), 'node')}, not begun>"
        return f"<backward, before {stop}>"

    def _sections(self) -> Iterator[Section]:
        yield Lines([repr(self)[1:-1]])
        stop = self._session.stop
        if stop is None or self._worker.done:
            return
        yield from list(stop._sections())[1:]  # its first line is ours
        ready, waiting = stop.run.queues(stop.node.id)
        rows = [["ready", node.name, node.scope.path] for node in ready[:_MOST_ROWS]]
        rows += [["waits for gradients", node.name, node.scope.path] for node in waiting[:_MOST_ROWS]]
        left = len(ready) + len(waiting) - len(rows)
        if rows:
            yield Table(["next", "node", "module"], rows, below=f"{left:,} more" if left else "")
        if self.breakpoints:
            yield Table(["stops at", ">came"], [[str(one), f"{one.hits:,}"] for one in self.breakpoints])


debug_backward = Debugger  # what is done, not what it is done with


_PATIENCE = 0.1  # seconds
_MOST_ROWS = 10  # of each queue


class _Worker:
    """The thread that runs the engine. Two locks say whose turn it is."""

    def __init__(
        self, call: tuple[Any, ...], inputs: Any, session: Callable[[Callable[[], None]], DebugSession]
    ) -> None:
        self._call, self._inputs = call, inputs
        self._go, self._at = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._at.acquire()
        self.session = session(self._pause)
        self.done = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._context, self._state = contextvars.copy_context(), _ThreadState()

    def go_on(self) -> Stop | None:
        """Let the engine run to the next stop. What it raises is raised here."""
        if self.done:
            raise StateError("this backward pass is over: make a new debugger.")
        begun = arrived = False
        interrupt: KeyboardInterrupt | None = None
        while not arrived:
            try:
                while not arrived:  # Ctrl-C may come at any moment of this loop: what was done is not done again
                    with signals_deferred():
                        if not begun:
                            self._give_turn()
                            begun = True
                        arrived = self._at.acquire(timeout=_PATIENCE)
            except KeyboardInterrupt as error:  # stop at the next node, as debuggers do
                if not begun:
                    raise
                self.session.interrupted, interrupt = True, error
        return self._arrived(interrupt)

    def _give_turn(self) -> None:
        """Let the thread of the engine run."""
        if self._thread is None:
            thread = threading.Thread(target=self._context.run, args=(self._work,), name="backward", daemon=True)
            thread.start()
            self._thread = thread
            _open.add(self)
        self._go.release()

    def _arrived(self, interrupt: KeyboardInterrupt | None) -> Stop | None:
        if self.done:
            self._end()
        if self._error is not None:
            raise self._error
        if interrupt is not None:
            raise interrupt
        return self.session.stop

    def abort(self) -> None:
        """Have the engine give up, if it has begun."""
        with signals_deferred():
            if self.done or self._thread is None:
                self.done = True
                return
            self.session.aborting = True
            self._go.release()
            self._at.acquire()
            self._end()
            if self._error is not None:
                raise self._error

    def _end(self) -> None:
        assert self._thread is not None
        self._thread.join()
        self._call = ()
        _open.discard(self)

    def _pause(self) -> None:
        self._at.release()
        self._go.acquire()

    def _work(self) -> None:
        self._go.acquire()
        try:
            with self._state.applied(), watched(self.session, threading.get_ident()):
                outputs, gradients, retain_graph, create_graph = self._call
                torch.autograd.backward(outputs, gradients, retain_graph, create_graph, inputs=self._inputs)
        except Aborted:
            pass
        except BaseException as error:
            self._error = error
            if self.session.stop is not None:
                error.add_note(f"torchatlas was debugging; it happened at {self.session.stop}")
        finally:
            self.session.over()
            self.done = True
            self._at.release()


class _ThreadState:
    """The state that torch keeps for each thread, taken from the thread that made a debugger."""

    def __init__(self) -> None:
        if functorch_depth():
            raise StateError(
                "a backward pass inside of torch.func.grad, vmap or another transform cannot wait in another thread. "
                "Use atlas.recording_backward, or debug outside of the transform."
            )
        self._threads, self._grad = torch.get_num_threads(), torch.is_grad_enabled()
        self._inference, self._several = torch.is_inference_mode_enabled(), engine_has_threads()
        kinds = ["cpu", *([torch.accelerator.current_accelerator().type] if torch.accelerator.is_available() else [])]  # type: ignore[union-attr]
        self._autocast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())
            for kind in kinds
        ]
        self._forbidden = saved_tensor_hooks_forbidden()
        self._saved_hooks = top_saved_tensor_hooks(False)  # those below it are not asked
        self._functions: list[Any] = function_mode_stack()
        # A recording of ours follows the program into its threads by itself.
        self._dispatch = [mode for mode in dispatch_mode_stack() if not getattr(mode, "records", False)]

    def applied(self) -> ExitStack:
        """Modes are put on the stack as they are: to enter one again may begin it anew."""
        if torch.get_num_threads() != self._threads:  # to ask is what sets OpenMP up in a new thread
            torch.set_num_threads(self._threads)
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(self._inference))
        stack.enter_context(torch.set_grad_enabled(self._grad))
        stack.enter_context(torch.autograd.set_multithreading_enabled(self._several))
        for kind, enabled, dtype, cached in self._autocast:
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cached))
        if self._saved_hooks is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self._saved_hooks))
        restore_saved_tensor_hooks(self._forbidden)
        stack.callback(restore_saved_tensor_hooks, None)
        for mode in self._functions:
            push_function_mode(mode)
            stack.callback(pop_function_mode)
        for mode in self._dispatch:
            push_mode(mode)
            stack.callback(remove_mode, mode)
        return stack


_open: weakref.WeakSet[_Worker] = weakref.WeakSet()  # whose engine has begun and not ended


@atexit.register
def _abort_all() -> None:
    """A thread that waits inside of the engine must not meet the end of the process there."""
    for worker in list(_open):
        worker.abort()

"""A backward pass at a terminal, as pdb is for Python: the engine waits, inline, while the user types."""

from __future__ import annotations

import cmd
import shlex
from collections.abc import Callable, Iterable
from typing import IO, Any

import torch

from torchatlas.autograd.debug_session import DebugSession
from torchatlas.autograd.debug_stop import numbers_at, precise
from torchatlas.autograd.engine_observer import EngineRun
from torchatlas.autograd.gradient_statistics import has_no_numbers
from torchatlas.autograd.print_graph import shape_text
from torchatlas.errors import AtlasError, InvalidInputError
from torchatlas.escapes import clean_text
from torchatlas.graph import Graph, GraphNode
from torchatlas.torch_private import no_transforms, unobserved

Forward = tuple[Graph, dict[int, str]]  # a recording of the forward pass, and the names of parameters by id
_MOST = 12  # nodes that a list shows
_PASSES = 8  # that are remembered: breakpoints may be on names of each


class Stopped(Exception):
    """The user ends the program."""


class Console(cmd.Cmd):
    """Commands for a stopped backward pass. An empty line repeats the last one."""

    prompt = "(backward) "
    intro = None

    def __init__(
        self,
        *,
        forward: Callable[[], Forward] | None = None,
        commands: Iterable[str] = (),
        stdin: IO[str] | None = None,
        stdout: IO[str] | None = None,
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self.session = _ConsoleSession(self._talk, forward)
        self.session.go(steps=1)
        self._waiting = list(commands)
        self._talking = False

    def interrupt(self, signal: int, frame: object) -> None:
        """Ctrl-C: stop at the next node. At the prompt, or if none came since the last Ctrl-C, the program ends."""
        if self._talking or self.session.interrupted:
            raise KeyboardInterrupt
        self.session.interrupted = True

    def _talk(self) -> None:
        """Ask the user for commands until one of them lets the engine go on."""
        self._talking = True
        try:
            self._converse()
        finally:
            self._talking = False

    def _converse(self) -> None:
        self._say(f"-> {self.session.stop}" + (f"   [{self.session.hit}]" if self.session.hit else ""))
        while self._waiting:
            line = self._waiting.pop(0)
            self._say(f"{self.prompt}{line}")
            if self.onecmd(line):
                return
        self.cmdloop()

    def _say(self, text: str) -> None:
        self.stdout.write(f"{clean_text(text)}\n")
        self.stdout.flush()

    def onecmd(self, line: str) -> bool:
        try:
            return bool(super().onecmd(line))
        except AtlasError as error:
            self._say(f"{error}")
            return False

    def default(self, line: str) -> None:
        if line == "EOF":
            raise Stopped
        self._say(f"unknown: {line.split()[0]!r}; help lists the commands")

    # -- going on ----------------------------------------------------------------------------------------------------

    def do_step(self, arg: str) -> bool:
        """step [N]: run one node, or N."""
        if arg and not (arg.isdecimal() and int(arg)):
            raise InvalidInputError(f"step takes a number from 1, not {arg!r}.")
        self.session.go(steps=int(arg or 1))
        return True

    def do_module(self, arg: str) -> bool:
        """module: run until a node of another module is about to run."""
        here = self.session.stopped().module
        self.session.go(until=lambda stop: stop.module != here)
        return True

    def do_until(self, arg: str) -> bool:
        """until NAME | nan | zero | above X: run until this node, operation, module, parameter or gradient comes.

        nan alone: until a node has made NaN or infinity of finite gradients; grads then shows both.
        """
        self.session.go_until(self.session.condition(**condition_of(arg)))
        return True

    def do_run(self, arg: str) -> bool:
        """run: run to the next breakpoint, in this backward pass or a later one."""
        self.session.go()
        return True

    def do_quit(self, arg: str) -> bool:
        """quit: end the program."""
        raise Stopped

    do_s, do_n, do_u, do_c, do_q = do_step, do_module, do_until, do_run, do_quit
    do_next = do_module
    do_continue = do_run

    # -- breakpoints -------------------------------------------------------------------------------------------------

    def do_break(self, arg: str) -> None:
        """break [NAME] [nan] [zero] [above X]: stop whenever this comes; alone: list them."""
        if arg:
            self.session.breakpoints.append(self.session.condition(**condition_of(arg)))
        for number, each in enumerate(self.session.breakpoints):
            self._say(f"{number}: {each}")

    def do_delete(self, arg: str) -> None:
        """delete N: forget a breakpoint."""
        if not arg.isdecimal() or int(arg) >= len(self.session.breakpoints):
            raise InvalidInputError(f"there is no breakpoint {arg!r}.")
        del self.session.breakpoints[int(arg)]

    do_b = do_break

    # -- looking -----------------------------------------------------------------------------------------------------

    def do_where(self, arg: str) -> None:
        """where: the node that is about to run."""
        self._say(f"-> {self.session.stopped()}")

    def do_grads(self, arg: str) -> None:
        """grads: the gradients that arrive at it; and those that it made, if it has run."""
        stop = self.session.stopped()
        for number, gradient in enumerate(stop.gradients):
            self._say(f"{number}: {_described(gradient, stop.name)}")
        for number, gradient in enumerate(stop.made or ()):
            self._say(f"made {number}: {_described(gradient, stop.name)}")

    def do_ready(self, arg: str) -> None:
        """ready: nodes that have all their gradients, the next first (a model of the engine's queue)."""
        self._list(self._queues()[0])

    def do_waiting(self, arg: str) -> None:
        """waiting: nodes that have some of their gradients."""
        self._list(self._queues()[1])

    def do_ran(self, arg: str) -> None:
        """ran: the nodes that ran last."""
        self._say("\n".join(self.session.order[-_MOST:]) or "nothing yet")

    def do_p(self, arg: str) -> None:
        """p EXPRESSION: evaluate Python; `grads` are the gradients, `node` is torch's node, `stop` all about it."""
        stop = self.session.stopped()
        try:
            self._say(repr(eval(arg, {"torch": torch, "grads": stop.gradients, "node": stop.torch_node, "stop": stop})))
        except Exception as error:  # whatever the expression raises is the user's
            self._say(f"{type(error).__name__}: {error}")

    def do_replace(self, arg: str) -> None:
        """replace N EXPRESSION: have the node take another gradient: replace 0 grads[0].clamp(-1, 1)"""
        number, _, expression = arg.partition(" ")
        if not number.isdecimal() or not expression:
            raise InvalidInputError("replace takes a number and an expression.")
        try:
            made = eval(expression, {"torch": torch, "grads": self.session.stopped().gradients})
        except Exception as error:
            self._say(f"{type(error).__name__}: {error}")
        else:
            self.session.replace(made, int(number))

    do_w, do_g = do_where, do_grads

    def _queues(self) -> tuple[list[GraphNode], list[GraphNode]]:
        stop = self.session.stopped()
        return stop.run.queues(stop.node.id)

    def _list(self, nodes: list[GraphNode]) -> None:
        lines = [node.name for node in nodes[:_MOST]]
        lines += [f"... {len(nodes) - _MOST} more"] if len(nodes) > _MOST else []
        self._say("\n".join(lines) or "none")


class _ConsoleSession(DebugSession):
    """Asks for a recording of the forward pass when a backward pass begins, not for those inside of one.

    A program may run for days: it remembers the first pass and a few of the last.
    """

    def __init__(self, pause: Callable[[], None], forward: Callable[[], Forward] | None) -> None:
        super().__init__(pause, {}, None)
        self._recorded = forward
        self._running: set[int] = set()

    def begin(self, task: EngineRun) -> None:
        if not self._running:
            self.forget(_PASSES)
        self._running.add(task.number)
        if self._recorded is not None and task.outer is None:
            self.forward, self.names = self._recorded()
        super().begin(task)

    def end(self, task: EngineRun, error: BaseException | None) -> None:
        self._running.discard(task.number)
        super().end(task, error)


def condition_of(text: str) -> dict[str, Any]:
    """nan, zero, above X and a name, in any order."""
    condition: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quote that is opened and not closed
        raise InvalidInputError(f"{text!r} cannot be read: {str(error).lower()}.") from None
    while words:
        word = words.pop(0)
        if word in ("nan", "zero"):
            condition[word] = True
        elif word == "above":
            condition["above"] = _number(words.pop(0) if words else "")
        elif "what" in condition:
            raise InvalidInputError(f"one name at a time, not {condition['what']!r} and {word!r}.")
        else:
            condition["what"] = word
    return condition


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise InvalidInputError("above takes a number: above 10.") from None


def _described(gradient: torch.Tensor | None, name: str) -> str:
    if gradient is None:
        return "none"
    text = f"{str(gradient.dtype).removeprefix('torch.')}{shape_text(gradient)}"
    if gradient.layout is not torch.strided:
        text = f"{str(gradient.layout).removeprefix('torch.')} {text}"
    if has_no_numbers(gradient):
        return f"{text} without numbers: on the meta device, fake or batched"
    with unobserved(), no_transforms():
        return f"{text}{_figures(numbers_at(gradient, name))}"


def _figures(numbers: torch.Tensor) -> str:
    if not numbers.numel():
        return ""
    size = "size " if numbers.is_complex() else ""
    numbers = precise(numbers).abs() if numbers.is_complex() else precise(numbers)
    bad = int((~numbers.isfinite()).sum())
    norm, low, high = (float(number) for number in (torch.linalg.vector_norm(numbers), numbers.min(), numbers.max()))
    text = f" norm {norm:.4g}, {size}min {low:.4g}, {size}max {high:.4g}"
    return text + (f", {bad:,} not finite" if bad else "")
